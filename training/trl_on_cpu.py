"""Make TRL's fused LM head score only the tokens a loss needs when it runs on a CPU.

TRL 1.16 scores just the valid positions on devices with Triton and every position, prompt and padding
included, elsewhere. The result is the same; on a CPU the needless positions are about two fifths of a DPO
step. The switch is a private function, so it is touched for this exact version only, for the duration of a
`with`, and a test compares loss and gradient with and without it.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager

PATCHED_TRL = "1.16.0"
TILE_VOCAB, TILE_TOKENS = 4096, 256


@contextmanager
def only_needed_positions() -> Iterator[bool]:
    """Within the block TRL scores completion tokens only; yields whether the switch was made."""
    import torch

    if torch.cuda.is_available() or importlib.metadata.version("trl") != PATCHED_TRL:
        yield False
        return
    import trl.kernels.chunked_logprob as kernel
    import trl.trainer.utils as utils

    before = (utils._use_triton, utils._CHUNKED_LOGPROB_CHUNK_SIZE, kernel.TOKEN_CHUNK_SIZE)
    try:
        utils._use_triton = _always
        utils._CHUNKED_LOGPROB_CHUNK_SIZE, kernel.TOKEN_CHUNK_SIZE = TILE_VOCAB, TILE_TOKENS
        yield True
    finally:
        utils._use_triton, utils._CHUNKED_LOGPROB_CHUNK_SIZE, kernel.TOKEN_CHUNK_SIZE = before


def _always(device: object) -> bool:  # noqa: ARG001
    return True
