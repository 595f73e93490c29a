"""A step's gradient does not depend on how its rows are cut into micro-batches: 1 x 8, 2 x 4, 8 x 1, uneven lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from training.oracles.finding import Comparison, Oracle, oracle, same
from training.oracles.given import ARGUMENTS, quiet

PROTECTS = "an update that changes with the micro-batch, so that a smaller memory teaches something else"
REFERENCE = "trl#3021, ms-swift#10117"
OWN = ("dpo", "kto", "online", "words")


@oracle(*OWN, protects=PROTECTS, reference=REFERENCE)
def accumulation(subject: Callable[..., Any] | None) -> Iterator[Comparison]:
    """palate's own losses and loop; the subject is called as `training.policy_trainer.make_trainer`."""
    from transformers import TrainingArguments

    from training.leash import Leash
    from training.oracles.items import objective, policy
    from training.oracles.plain import one_step
    from training.policy_trainer import make_trainer

    with quiet() as folder:
        for method in OWN:
            loss, items = objective(method)
            arguments = {**ARGUMENTS, "per_device_train_batch_size": 8, "remove_unused_columns": False}
            found = {
                size: one_step(
                    (subject or make_trainer)(
                        policy(),
                        items,
                        loss,
                        TrainingArguments(output_dir=str(folder), **arguments),
                        micro_batch=size,
                        leashes=[Leash("kl", 0.05, None)],
                        on_step=None,
                    )
                )
                for size in (8, 1, 2)
            }
            for size in (1, 2):
                yield same(f"{method}: gradient of {8 // size} x {size}", found[size], found[8])


def _of_trl(
    kind: str, method: str, steps: Callable[[Any, Path, int], Any], sizes: tuple[int, ...], avoided: str = ""
) -> Oracle:
    """An oracle of one of TRL's trainers; its subject is the trainer's class.

    Args:
        kind: name of the trainer.
        method: which of palate's updates it concerns.
        steps: makes the trainer of a class, a folder and a micro-batch, eight rows a step.
        sizes: micro-batches.
        avoided: see `Comparison`.
    """

    def compare(subject: type[Any] | None) -> Iterator[Comparison]:
        from training.oracles.plain import one_step

        with quiet() as folder:
            whole = one_step(steps(subject, folder, 8))
            for size in sizes:
                part = one_step(steps(subject, folder, size))
                yield same(f"gradient of {8 // size} x {size}", part, whole, avoided=avoided)

    compare.__name__ = f"accumulation_trl_{kind}"
    return oracle(method, protects=PROTECTS, reference=REFERENCE)(compare)


def _sizes(size: int) -> dict[str, Any]:
    return {"per_device_train_batch_size": size, "gradient_accumulation_steps": 8 // size}


def _dpo(subject: type[Any] | None, folder: Path, size: int) -> Any:
    from trl import DPOTrainer

    from training.oracles.dpo import dpo_trainer

    return dpo_trainer(subject or DPOTrainer, folder, **_sizes(size))


def _kto(subject: type[Any] | None, folder: Path, size: int) -> Any:
    from trl import KTOTrainer

    from training import tiny
    from training.oracles.kto import kto_trainer

    trainer = kto_trainer(subject or KTOTrainer, folder, **_sizes(size))
    tiny.move(trainer.model, 0.1)  # away from the reference: at the start every KL is 0
    return trainer


def _sft(subject: type[Any] | None, folder: Path, size: int) -> Any:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from training import tiny
    from training.oracles.texts import plain

    return (subject or SFTTrainer)(
        model=tiny.policy(),
        args=SFTConfig(output_dir=str(folder), **{**ARGUMENTS, **_sizes(size)}),
        train_dataset=Dataset.from_list(plain()),
        processing_class=tiny.tokenizer(),
    )


def _grpo(subject: type[Any] | None, folder: Path, size: int) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from training import tiny

    return (subject or GRPOTrainer)(
        model=tiny.policy(),
        reward_funcs=_brevity,
        args=GRPOConfig(
            output_dir=str(folder),
            num_generations=2,
            max_completion_length=16,
            **{**ARGUMENTS, **_sizes(size)},
        ),
        train_dataset=Dataset.from_list([{"prompt": str(k), "place": k} for k in range(4)]),
        processing_class=tiny.tokenizer(),
        rollout_func=_replies,
    )


def _replies(prompts: list[str], _trainer: Any) -> dict[str, Any]:
    """Replies that depend on the prompt and on which of its group they are."""
    ids = []
    for place, prompt in enumerate(prompts):
        length = 1 + (5 * int(prompt) + 7 * (place % 2)) % 15
        ids.append([*(30 + (13 * int(prompt) + 3 * t + place % 2) % 400 for t in range(length)), 2])
    return {
        "prompt_ids": [[40 + int(prompt)] * (1 + 2 * int(prompt)) for prompt in prompts],
        "completion_ids": ids,
        "logprobs": [[0.0] * len(row) for row in ids],
    }


def _brevity(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    return [-0.1 * len(ids) for ids in completion_ids]


accumulation_trl_dpo = _of_trl("dpo", "dpo", _dpo, (1, 2))
accumulation_trl_kto = _of_trl(
    "kto", "kto", _kto, (2, 4), "TRL takes the KL from each micro-batch, palate from the whole step"
)
accumulation_trl_sft = _of_trl("sft", "words", _sft, (1, 2))
accumulation_trl_grpo = _of_trl("grpo", "grpo", _grpo, (1, 2))
