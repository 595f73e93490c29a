"""Settings that a library takes and silently does not follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from training.oracles.finding import Comparison, oracle
from training.oracles.given import quiet

_AVOIDED = "palate has no setting for it: on a CPU it would train unsharded and say otherwise"


@oracle(
    "dpo",
    "kto",
    "online",
    "words",
    "grpo",
    protects="a model that is said to be sharded and is not",
    reference="FACTS C.5: accelerate takes fsdp on a CPU for plain data parallelism",
)
def fsdp_on_cpu(subject: Callable[[Any], str] | None) -> Iterator[Comparison]:
    """What becomes of `TrainingArguments(fsdp=...)` on a CPU; the subject says so of arguments."""
    import torch
    from transformers import TrainingArguments

    if torch.cuda.is_available():
        yield Comparison("a GPU is here", "yes", "yes")
        return
    with quiet() as folder:
        try:
            arguments = TrainingArguments(
                output_dir=str(folder), use_cpu=True, report_to="none", fsdp="full_shard"
            )
            outcome = (subject or _kind)(arguments)
        except (ValueError, RuntimeError, ImportError, NotImplementedError):
            outcome = "refused"
    yield Comparison(
        "fsdp on a CPU",
        outcome if outcome == "refused" else f"taken for {outcome}",
        "refused",
        avoided=_AVOIDED,
    )


def _kind(arguments: Any) -> str:
    return str(arguments.distributed_state.distributed_type.value)
