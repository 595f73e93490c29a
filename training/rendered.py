"""What becomes of logged chats when they are made tokens, and how that is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

TOO_LONG = "too_long"
"""Why a chat is left out; every other reason is one of the template."""


@dataclass(frozen=True)
class Rendered:
    """One chat as tokens."""

    prompt_ids: list[int]
    completion_ids: list[int]
    completion_mask: list[int]
    """1 where a loss may read the token of the completion."""
    cut_turns: int = 0
    """Turns of the prompt that are left out."""
    mismatch: bool = False
    """Whether this is known to differ from what was served (cut turns apart)."""
    logged: bool = False
    """Whether the completion is the tokens that were sampled."""
    notes: tuple[str, ...] = ()
    """What differs, and what the template left out, sorted."""

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class NotRendered:
    """A chat that cannot be trained on, and why."""

    reason: str


@dataclass(frozen=True)
class RenderCounts:
    """What became of some chats."""

    rendered: int = 0
    cut: int = 0
    """Rendered ones whose prompt lacks turns."""
    left_out: int = 0
    """Too long, even without the turns that may go."""
    mismatch: int = 0
    """Rendered ones that are known to differ from what was served."""
    unrenderable: int = 0
    """Not rendered because the template cannot show them."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Notes and reasons, each with the number of chats."""

    def metrics(self) -> dict[str, float]:
        """As metrics of an update, by names that begin with `render/`."""
        named = {n: getattr(self, n) for n in ("rendered", "cut", "left_out", "mismatch", "unrenderable")}
        return {f"render/{name}": float(count) for name, count in {**named, **self.reasons}.items()}


def counted(outcomes: Iterable[Rendered | NotRendered]) -> RenderCounts:
    """Sums up what became of chats."""
    outcomes = list(outcomes)
    rendered = [each for each in outcomes if isinstance(each, Rendered)]
    refused = [each.reason for each in outcomes if isinstance(each, NotRendered)]
    reasons = Counter([*refused, *(note for each in rendered for note in each.notes)])
    return RenderCounts(
        rendered=len(rendered),
        cut=sum(each.cut_turns > 0 for each in rendered),
        left_out=refused.count(TOO_LONG),
        mismatch=sum(each.mismatch for each in rendered),
        unrenderable=len(refused) - refused.count(TOO_LONG),
        reasons=dict(sorted(reasons.items())),
    )
