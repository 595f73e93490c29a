"""Full reward model: the base language model with a head for each objective, fine-tuned with LoRA (TRL RewardTrainer).

Every pair trains the head of its own objective (`preference_heads` has the loss); what a reply is worth is the sum of
its objectives' rewards by the weights of the settings.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from reward_models import model_files, ties
from reward_models.hardware import fast_bf16
from reward_models.preference_heads import heads_collator, heads_trainer, to_trl
from reward_models.scorer import Chat, RewardModelError, Rewards
from reward_models.shared_prefix import passes, shares_prefixes
from reward_models.text_batches import split_where_they_part

if TYPE_CHECKING:
    import pyarrow as pa


class Config(BaseModel):
    """Settings of the full reward model."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    learning_rate: float = Field(default=2e-4, gt=0)
    """Peak learning rate of AdamW on adapter and head."""
    epochs: float = Field(default=1.0, gt=0)
    """Passes over the pairs."""
    batch_pairs: int = Field(default=8, ge=1)
    """Pairs per optimizer step."""
    max_tokens: int = Field(default=512, ge=16)
    """Pairs with a longer prompt and reply are left out."""
    lora_r: int = Field(default=16, ge=1)
    """Rank of the adapter."""
    center: float = Field(default=0.01, ge=0)
    """Weight that keeps rewards around zero."""
    margin_scale: float = Field(default=0.0, ge=0)
    """Log-odds by which the better reply of a clear win should win beyond being preferred; less clear ones in
    proportion. Above 0 a reward is no longer the log-odds of being preferred, and probabilities are too sure."""
    objectives: dict[str, float] = Field(default_factory=lambda: {"helpful": 1.0})
    """What replies are judged by, each with a reward of its own, and its weight in the total."""
    objective_of: dict[str, str] = Field(default_factory=dict)
    """Objective that a rule's or an agent's rows teach; a rule goes before an agent. All others teach the first."""
    min_rows: int = Field(default=32, ge=2)
    """With fewer pairs of any objective the fit refuses (exit code 4)."""

    @model_validator(mode="after")
    def _objectives_make_sense(self) -> Config:
        weights = self.objectives.values()
        if not all(map(math.isfinite, weights)) or not any(weight > 0 for weight in weights):
            raise ValueError(
                f"objectives need finite weights, at least one of them above 0; got {self.objectives}"
            )
        unknown = sorted(set(self.objective_of.values()) - set(self.objectives))
        if unknown:
            raise ValueError(
                f"objective_of names what is no objective: {', '.join(unknown)}; "
                f"known are {', '.join(self.objectives)}"
            )
        return self


@dataclass
class PreferenceLM:
    """A fitted reward model. See `reward_models.scorer.Scorer`."""

    model: Any
    tokenizer: Any
    config: Config
    trained_on: frozenset[str]
    log_nu: float = ties.NO_TIES
    source: Path | None = field(default=None)

    def score(
        self,
        prompts: Sequence[Chat],
        completions: Sequence[str],
        user_ids: Sequence[str | None] | None = None,  # noqa: ARG002 - the protocol of scorers
        agents: Sequence[str | None] | None = None,  # noqa: ARG002
    ) -> Rewards:
        """Rewards of B completions, their objectives' by weight; one taste for everybody."""
        weights = np.array(list(self.config.objectives.values()))
        return Rewards(self._heads(prompts, completions) @ weights, np.full(len(completions), np.nan))

    def score_objectives(self, prompts: Sequence[Chat], completions: Sequence[str]) -> dict[str, np.ndarray]:
        """Each objective's rewards (B,) of B completions, in log-odds of being preferred for its sake."""
        return dict(zip(self.config.objectives, self._heads(prompts, completions).T, strict=True))

    def _heads(self, prompts: Sequence[Chat], completions: Sequence[str]) -> np.ndarray:
        """(B, K) rewards of B completions, read at the last real token; equal texts are read once."""
        template, pad = self.tokenizer.apply_chat_template, self.tokenizer.pad_token_id
        encoded = [
            tuple(
                template([*p, {"role": "assistant", "content": c}], tokenize=True, return_dict=False)[
                    -self.config.max_tokens :
                ]
            )
            for p, c in zip(prompts, completions, strict=True)
        ]
        place = {ids: n for n, ids in enumerate(dict.fromkeys(encoded))}
        rewards = np.zeros((len(place), len(self.config.objectives)))
        self.model.eval()  # also what a caller gets back: no dropout when scores are asked for
        texts, share = split_where_they_part(list(place), pad), shares_prefixes(self.model)
        for rows, output, _ in passes(self.model, texts, pad=pad, share=share):
            rewards[rows] = output.logits.float().cpu().numpy()
        return rewards[[place[ids] for ids in encoded]]

    def probabilities(self, difference: np.ndarray) -> np.ndarray:
        """(N, 3) win, tie, loss."""
        return ties.probabilities(difference, self.log_nu)

    def save(self, directory: Path) -> None:
        """Write the adapter and `reward_model.json`; the JSON, written last, makes it loadable."""
        with model_files.writing(directory) as about:
            # This machine's path of the base means nothing elsewhere; `load` is given the base.
            self.model.peft_config["default"].base_model_name_or_path = "base"
            self.model.save_pretrained(directory / "adapter", save_embedding_layers=False)
            (directory / "adapter" / "README.md").unlink(missing_ok=True)
            about |= {
                "method": "preference_lm",
                "config": self.config.model_dump(mode="json"),
                "log_nu": self.log_nu,
                "trained_on": sorted(self.trained_on),
            }


def load(directory: Path, base: Path, cache_dir: Path | None = None) -> PreferenceLM:  # noqa: ARG001
    """Load what `save` wrote.

    Raises:
        RewardModelError: files are missing or unreadable.
    """
    from peft import PeftModel
    from safetensors import SafetensorError

    with model_files.reading(directory, SafetensorError) as about:
        config = Config.model_validate(about["config"])
        tokenizer, model = sequence_classifier(base, len(config.objectives))
        model = PeftModel.from_pretrained(model, str(directory / "adapter"))
        ids, log_nu = frozenset(about["trained_on"]), float(about["log_nu"])
        return PreferenceLM(model, tokenizer, config, ids, log_nu, directory)


def fit(
    config: Config,
    rows: pa.Table,
    *,
    base: Path,
    seed: int,
    cache_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PreferenceLM:
    """Fine-tune on decided PREFERENCES pairs; ties set the tie parameter from their share.

    Raises:
        RewardModelError: training diverged.
        NotEnoughVotes: fewer than `min_rows` decided pairs of an objective that fit `max_tokens`.
    """
    import pyarrow.compute as pc

    counted = pc.field("rejected").is_valid() & (pc.field("weight") > 0)
    paired = rows.filter(counted).sort_by("preference_id")
    decided = paired.filter(pc.field("margin") > 0)
    if cache_dir is not None:
        cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="reward-training-", dir=cache_dir and cache_dir.parent
    ) as scratch:
        trainer = _trainer(config, decided, base, Path(scratch), seed, progress)
        trainer.train()
    tie_share = 1 - decided.num_rows / max(paired.num_rows, 1)
    # P(tie) at equal rewards is nu / (2 + nu): matched to the share of ties, an upper bound of it.
    log_nu = float(np.log(2 * tie_share / (1 - tie_share))) if 0 < tie_share < 1 else ties.NO_TIES
    ids = frozenset(paired["preference_id"].to_pylist())
    if not all(bool(p.isfinite().all()) for p in trainer.model.parameters() if p.requires_grad):
        raise RewardModelError(
            "Training diverged: a weight of the reward model is not a finite number.",
            next_step="lower [reward.preference_lm] learning_rate",
        )
    return PreferenceLM(trainer.model, trainer.processing_class, config, ids, log_nu)


def _trainer(
    config: Config,
    decided: pa.Table,
    base: Path,
    output: Path,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> Any:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import PrinterCallback, TrainerCallback, set_seed
    from trl import RewardConfig

    set_seed(seed)
    tokenizer, model = sequence_classifier(base, len(config.objectives))
    # TRL's trainer refuses a model of several labels, which its own loss would not know what to do with. The heads
    # are made by now, and nothing else reads the number.
    model.config.num_labels = 1
    examples = to_trl(config, decided, tokenizer)

    class Progress(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            if progress:
                progress(state.global_step, state.max_steps)

    arguments = RewardConfig(
        output_dir=str(output),
        learning_rate=config.learning_rate,
        num_train_epochs=config.epochs,
        per_device_train_batch_size=config.batch_pairs,
        max_length=config.max_tokens,
        gradient_checkpointing=torch.cuda.is_available(),
        bf16=fast_bf16(),
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
        dataloader_pin_memory=False,
        remove_unused_columns=False,  # the loss needs `head` and `weight`
    )
    lora = LoraConfig(
        r=config.lora_r,
        lora_alpha=2 * config.lora_r,
        target_modules="all-linear",
        task_type="SEQ_CLS",
        modules_to_save=["score"],
    )
    trainer = heads_trainer(config.center)(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(examples),
        data_collator=heads_collator(tokenizer.pad_token_id),
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[Progress()],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def sequence_classifier(base: Path, heads: int) -> tuple[Any, Any]:
    """Tokenizer and base model with so many new heads, before anything is trained."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    # Said, because with the library's default of two labels the head would be a classifier by accident.
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=heads, dtype=torch.float32)
    model.config.pad_token_id = tokenizer.pad_token_id
    if torch.cuda.is_available():
        model = model.to("cuda")
    return tokenizer, model
