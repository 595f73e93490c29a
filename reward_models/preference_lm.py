"""Full reward model: the base language model with a scalar head, fine-tuned with LoRA (TRL RewardTrainer).

Loss per pair: -log sigmoid(r_chosen - r_rejected) plus `center` * (r_chosen + r_rejected)^2.
Source: Ouyang et al. 2022 (arXiv 2203.02155), eq. 1; centring: Eisenstein et al. 2023 (arXiv 2312.09244),
eq. 2.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from reward_models import ties
from reward_models.hardware import fast_bf16
from reward_models.scorer import Chat, NotEnoughVotes, RewardModelError, Rewards

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
    min_rows: int = Field(default=32, ge=2)
    """With fewer pairs the fit refuses (exit code 4)."""


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
        """Rewards of B completions, read at the last real token; one taste for everybody."""
        import torch

        template = self.tokenizer.apply_chat_template
        encoded = [
            list(template([*p, {"role": "assistant", "content": c}], tokenize=True, return_dict=False))[
                -self.config.max_tokens :
            ]
            for p, c in zip(prompts, completions, strict=True)
        ]
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        mean = np.zeros(len(encoded))
        self.model.eval()  # also what a caller gets back: no dropout when scores are asked for
        for start in range(0, len(order), 16):
            batch = order[start : start + 16]
            padded = self.tokenizer.pad(
                {"input_ids": [encoded[i] for i in batch]}, padding_side="right", return_tensors="pt"
            ).to(self.model.device)
            with torch.inference_mode():
                mean[batch] = self.model(**padded).logits[:, 0].float().cpu().numpy()
        return Rewards(mean, np.full(len(encoded), np.nan))

    def probabilities(self, difference: np.ndarray) -> np.ndarray:
        """(N, 3) win, tie, loss."""
        return ties.probabilities(difference, self.log_nu)

    def save(self, directory: Path) -> None:
        """Write the adapter and `reward_model.json`; the JSON, written last, makes it loadable."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "reward_model.json").unlink(missing_ok=True)
        # This machine's path of the base means nothing elsewhere; `load` is given the base.
        self.model.peft_config["default"].base_model_name_or_path = "base"
        self.model.save_pretrained(directory / "adapter", save_embedding_layers=False)
        (directory / "adapter" / "README.md").unlink(missing_ok=True)
        about = {
            "method": "preference_lm",
            "config": self.config.model_dump(mode="json"),
            "log_nu": self.log_nu,
            "trained_on": sorted(self.trained_on),
        }
        partial = directory / "reward_model.partial"
        partial.write_text(json.dumps(about, indent=1))
        partial.replace(directory / "reward_model.json")


def load(directory: Path, base: Path, cache_dir: Path | None = None) -> PreferenceLM:  # noqa: ARG001
    """Load what `save` wrote.

    Raises:
        RewardModelError: files are missing or unreadable.
    """
    from peft import PeftModel
    from safetensors import SafetensorError

    try:
        about = json.loads((directory / "reward_model.json").read_text())
        tokenizer, model = _sequence_classifier(base)
        model = PeftModel.from_pretrained(model, str(directory / "adapter"))
        config = Config.model_validate(about["config"])
        ids, log_nu = frozenset(about["trained_on"]), float(about["log_nu"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RewardModelError(
            "The reward model cannot be read.", got=directory, next_step="palate train"
        ) from error
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
        NotEnoughVotes: fewer than `min_rows` decided pairs that fit `max_tokens`.
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
    from trl import RewardConfig, RewardTrainer

    set_seed(seed)
    tokenizer, model = _sequence_classifier(base)
    examples = [
        {
            "prompt": row["prompt"],
            "chosen": [{"role": "assistant", "content": row["chosen"]}],
            "rejected": [{"role": "assistant", "content": row["rejected"]}],
        }
        for row in decided.select(["prompt", "chosen", "rejected"]).to_pylist()
    ]
    template = tokenizer.apply_chat_template
    fitting = [
        e
        for e in examples
        if all(
            len(template(e["prompt"] + e[s], tokenize=True, return_dict=False)) <= config.max_tokens
            for s in ("chosen", "rejected")
        )
    ]
    if len(fitting) < config.min_rows:
        raise NotEnoughVotes(
            "Too few decided pairs to fit a reward model.",
            got=f"{len(fitting)} of {len(examples)} fit {config.max_tokens} tokens",
            allowed=f"at least {config.min_rows} ([reward.preference_lm] min_rows)",
            next_step='collect more votes, or set [reward] method = "bradley_terry"',
        )

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
        center_rewards_coefficient=config.center or None,
        gradient_checkpointing=torch.cuda.is_available(),
        bf16=fast_bf16(),
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
        dataloader_pin_memory=False,
    )
    lora = LoraConfig(
        r=config.lora_r,
        lora_alpha=2 * config.lora_r,
        target_modules="all-linear",
        task_type="SEQ_CLS",
        modules_to_save=["score"],
    )
    trainer = RewardTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(fitting),
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[Progress()],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _sequence_classifier(base: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    # One label: with the library's default of two the head would be a classifier by accident.
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32)
    model.config.pad_token_id = tokenizer.pad_token_id
    if torch.cuda.is_available():
        model = model.to("cuda")
    return tokenizer, model
