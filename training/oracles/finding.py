"""What an oracle is, and what it finds: numbers of an implementation beside those that are right."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

Number = float | str
State = Literal["ok", "known fault", "FAIL"]


@dataclass(frozen=True)
class Comparison:
    """One number that was measured, and what it has to be."""

    what: str
    measured: Number
    """A text where the question is what happens, such as "refused"."""
    expected: Number
    tolerance: float = 0.0
    """How far off a number may be."""
    avoided: str = ""
    """How palate avoids a fault of a library that is known to be there; being off is then said and does not fail."""

    @property
    def holds(self) -> bool:
        """Whether it is as expected; what is not a number never is."""
        if isinstance(self.measured, str) or isinstance(self.expected, str):
            return self.measured == self.expected
        return abs(self.measured - self.expected) <= self.tolerance

    @property
    def strain(self) -> float:
        """How much of the tolerance is used up; above 1 it does not hold."""
        if isinstance(self.measured, str) or isinstance(self.expected, str) or math.isnan(self.measured):
            return 0.0 if self.holds else math.inf
        off = abs(self.measured - self.expected)
        return off / self.tolerance if self.tolerance else (math.inf if off else 0.0)


@dataclass(frozen=True)
class Finding:
    """What one oracle found."""

    name: str
    passed: bool
    """Whether all that must hold does."""
    measured: str
    """Of the comparison that is furthest off, with what it is."""
    expected: str
    tolerance: float
    protects: str
    """What goes wrong, and silently, where this does not hold."""
    reference: str
    """Where the fault was seen before, or the source of the formula."""
    seconds: float
    state: State
    comparisons: tuple[Comparison, ...] = field(default=(), repr=False)

    def as_json(self) -> dict[str, Any]:
        """For scripts: everything, with numbers that JSON does not know as text."""
        document = asdict(self)
        for one, comparison in zip(document["comparisons"], self.comparisons, strict=True):
            one["holds"] = comparison.holds
            for side in ("measured", "expected"):
                if isinstance(one[side], float) and not math.isfinite(one[side]):
                    one[side] = str(one[side])
        return document


@dataclass(frozen=True)
class Oracle:
    """A check of one promise; `check` takes the implementation that is to keep it."""

    name: str
    methods: frozenset[str]
    """Which updates rest on it."""
    protects: str
    reference: str
    compare: Callable[[Any], Iterable[Comparison]]

    def check(self, subject: Any = None) -> Finding:
        """Measure a subject: the installed library's or palate's own where none is given. Never raises."""
        started = time.perf_counter()
        found: list[Comparison] = []
        try:
            found += self.compare(subject)
        except Exception as error:
            # A subject may break in any way; that it cannot be run at all is a finding like any other.
            text = " ".join(str(error).split())[:160]
            found.append(Comparison("ran", f"{type(error).__name__}: {text}", "no error"))
        return self._finding(found, time.perf_counter() - started)

    def _finding(self, found: list[Comparison], seconds: float) -> Finding:
        off = [c for c in found if not c.holds]
        failed = [c for c in off if not c.avoided]
        state: State = "FAIL" if failed or not found else "known fault" if off else "ok"
        shown = max(failed or off or found, key=lambda c: c.strain, default=Comparison("ran", "nothing", ""))
        return Finding(
            self.name,
            state != "FAIL",
            f"{shown.what}: {_shown(shown.measured)}",
            _shown(shown.expected),
            shown.tolerance,
            (shown.avoided and f"{self.protects}; {shown.avoided}") or self.protects,
            self.reference,
            seconds,
            state,
            tuple(found),
        )


def _shown(value: Number) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def oracle(
    *methods: str, protects: str, reference: str
) -> Callable[[Callable[[Any], Iterable[Comparison]]], Oracle]:
    """Make an oracle of a function that compares; it is called by the function's name.

    Args:
        methods: updates that rest on it.
        protects: see `Finding`.
        reference: see `Finding`.
    """

    def made(compare: Callable[[Any], Iterable[Comparison]]) -> Oracle:
        return Oracle(compare.__name__, frozenset(methods), protects, reference, compare)

    return made


def near(
    what: str, measured: Any, expected: float, *, rel: float = 1e-5, absolute: float = 1e-7
) -> Comparison:
    """A number that has to be another one up to rounding."""
    return Comparison(what, float(measured), float(expected), absolute + rel * abs(expected))


def same(
    what: str, measured: Tensor, expected: Tensor, *, rel: float = 1e-4, avoided: str = ""
) -> Comparison:
    """A tensor that has to be another one: the largest difference, as a share of the largest entry.

    A reference of zeros would be met by anything that computes nothing, so it meets no tolerance.
    """
    if measured.shape != expected.shape:
        return Comparison(what, f"shape {tuple(measured.shape)}", f"shape {tuple(expected.shape)}")
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    off = float((measured - expected).abs().max()) / scale if scale else math.nan
    return Comparison(f"{what}, largest difference", off, 0.0, rel, avoided)
