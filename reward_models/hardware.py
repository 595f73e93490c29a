"""Which number format this machine computes fast in."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@functools.cache
def fast_bf16() -> bool:
    """Whether bfloat16 is the fast format here.

    True on CUDA devices that have it and on CPUs with bf16 instructions (AVX-512 BF16, AMX). On any other CPU
    bf16 is emulated and tens of times slower than fp32, although every library accepts it there.
    """
    import torch

    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def inference_dtype() -> torch.dtype:
    """The format in which models answer and embed."""
    import torch

    return torch.bfloat16 if fast_bf16() else torch.float32
