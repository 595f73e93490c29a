"""A stand-in for a model whose log-probabilities are given: what a library's loss makes of them can then be computed.

TRL's trainers ask their model for `log_probs` of the tokens that are labelled. This answers with numbers of our
choice, and the gradient by each of them can be read afterwards.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

PAD = 2
"""The tiny tokenizer's padding, which is also its end of turn."""
ARGUMENTS: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "disable_tqdm": True,
    "save_strategy": "no",
    "logging_steps": 1,
    "logging_nan_inf_filter": False,
    "max_grad_norm": 1e9,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "dataloader_pin_memory": False,
    "seed": 0,
}
"""Of every trainer here: single precision on the CPU, nothing written, the gradient as it is."""


class Given:
    """Answers TRL's fused head with given log-probabilities.

    Args:
        answers: pairs of (B, T) input ids and (B, T - 1) log-probabilities of their tokens from the second on.
    """

    def __init__(self, *answers: tuple[Tensor, Tensor]) -> None:
        self.answers = answers

    def __call__(self, *, input_ids: Tensor, labels: Tensor, **_: Any) -> Any:
        """As TRL calls its model; tokens without a label get 0, as from its own head."""
        import torch

        logps = next(logps for ids, logps in self.answers if torch.equal(ids, input_ids))
        labelled = logps.masked_fill(labels[:, 1:] == -100, 0.0)
        none = torch.zeros_like(logps).detach()
        return SimpleNamespace(log_probs=labelled, entropy=none, mean_logits=none, is_top1=none.bool())


def rows(
    prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]], logps: Sequence[Sequence[float]]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prompts and replies side by side, padded on the right, and the log-probabilities of the replies' tokens.

    Returns:
        ids, attention mask, completion mask, each (B, T), and (B, T - 1) log-probabilities, a leaf that keeps its
        gradient. Where nothing is given they are 9, so that whoever reads them by mistake is found out.
    """
    import torch

    width = max(len(p) + len(r) for p, r in zip(prompts, replies, strict=True))
    ids = torch.full((len(prompts), width), PAD)
    mask, completion = torch.zeros_like(ids), torch.zeros_like(ids)
    values = torch.full((len(prompts), width - 1), 9.0)
    for row, (prompt, reply, given) in enumerate(zip(prompts, replies, logps, strict=True)):
        whole = len(prompt) + len(reply)
        ids[row, :whole] = torch.tensor([*prompt, *reply])
        mask[row, :whole] = 1
        completion[row, len(prompt) : whole] = 1
        values[row, len(prompt) - 1 : whole - 1] = torch.tensor(given)
    return ids, mask, completion, values.requires_grad_()


@contextlib.contextmanager
def quiet() -> Iterator[Path]:
    """A folder that is gone afterwards, and libraries that neither print nor draw bars meanwhile."""
    import datasets
    import transformers

    bars = datasets.are_progress_bars_disabled()
    level = transformers.logging.get_verbosity()
    loading = transformers.logging.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    trl = logging.getLogger("trl")
    before = trl.level
    trl.setLevel(logging.ERROR)
    # Trainers collect garbage at every turn; what the libraries made when they were imported is none.
    gc.freeze()
    try:
        with tempfile.TemporaryDirectory(prefix="palate-oracle-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield Path(folder)
    finally:
        gc.unfreeze()
        trl.setLevel(before)
        transformers.logging.set_verbosity(level)
        if loading:
            transformers.logging.enable_progress_bar()
        if not bars:
            datasets.enable_progress_bars()
