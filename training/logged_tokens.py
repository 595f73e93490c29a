"""Token ids as a product logged them, beside those that the chat template gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Logged(NamedTuple):
    """Token ids of a prompt and of the replies to it; None where they were not logged."""

    prompt: Sequence[int] | None
    completions: tuple[Sequence[int] | None, ...]

    def known_to(self, tokenizer: Any) -> bool:
        """Whether all of them can be this tokenizer's; others were made by another one."""
        size = len(tokenizer)
        return all(0 <= token < size for ids in (self.prompt, *self.completions) if ids for token in ids)


def differ(tokenizer: Any, served: Sequence[int], rendered: Sequence[int]) -> bool:
    """Whether what was served is something else than what the template gives.

    The template may go on after what was sampled: with the end of the turn, where it was not logged or the reply was
    cut off, and with the white space that stands between turns.
    """
    count = len(served)
    if list(served) != list(rendered[:count]):
        return True
    return bool(tokenizer.decode(list(rendered[count:]), skip_special_tokens=True).strip())


def mask_like(served: Sequence[int], rendered: Sequence[int], mask: Sequence[int]) -> list[int]:
    """The mask of rendered tokens for served ones.

    Aligned at the end, as a reply follows its reasoning: from the last served token backwards for as long as both
    agree. What lies before is masked, so that no token is trained on that might be reasoning.

    Args:
        served: (n,) token ids.
        rendered: (m,) token ids.
        mask: (m,) 1 where a loss may read.

    Returns:
        (n,) likewise.
    """
    found = [0] * len(served)
    place = next((i for i in range(len(rendered) - 1, -1, -1) if rendered[i] == served[-1]), -1)
    for at in range(len(served) - 1, -1, -1):
        if place < 0 or rendered[place] != served[at]:
            break
        found[at] = mask[place]
        place -= 1
    return found
