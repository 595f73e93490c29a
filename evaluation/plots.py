"""The report's plots: inline SVG that follows the page's colours, light, dark or on paper.

matplotlib knows no CSS. Each plot is drawn in marker colours, which are then replaced by the page's CSS
variables, and its text stays text (small, selectable, in the page's font). No plot shows text of users.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from evaluation.calibration import Calibration
from evaluation.compare import Comparison
from evaluation.k_shot import KShot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Marker colour -> CSS variable of the template.
INK, SOFT, LINE = "#010203", "#010204", "#010205"
CHAMPION, CANDIDATE, TIE, ACCENT = "#010206", "#010207", "#010208", "#010209"
VARIABLES = {
    INK: "--ink",
    SOFT: "--soft",
    LINE: "--line",
    CHAMPION: "--champion",
    CANDIDATE: "--candidate",
    TIE: "--tie",
    ACCENT: "--accent",
}
# More dots than this cannot be told apart and only make the file large.
MAX_DOTS = 1500


def outcome_bar(comparison: Comparison) -> str:
    """Won, tied and lost comparisons in one bar."""
    figure, axes = _figure(6.4, 1.25)
    parts = [
        (comparison.wins, CANDIDATE, "candidate better"),
        (comparison.ties, TIE, "tie"),
        (comparison.losses, CHAMPION, "champion better"),
    ]
    total, left = max(1, comparison.rows), 0.0
    for count, colour, label in parts:
        share = count / total
        axes.barh(0, share, left=left, color=colour, height=0.62, label=f"{label}  {count}")
        if share > 0.07:
            axes.text(
                left + share / 2, 0, f"{share:.0%}", ha="center", va="center", color="#fffffe", weight=700
            )
        left += share
    axes.axvline(0.5, color=INK, linewidth=1, linestyle=(0, (2, 2)))
    axes.set_xlim(0, 1)
    axes.set_axis_off()
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.02),
        ncols=3,
        frameon=False,
        labelcolor=INK,
        handlelength=1.0,
    )
    return _svg(figure, "outcome", "How often each model's reply was preferred")


def reward_histogram(rows: pa.Table) -> str:
    """Distribution of candidate_reward - champion_reward."""
    difference = np.asarray(rows["candidate_reward"].to_numpy()) - np.asarray(
        rows["champion_reward"].to_numpy()
    )
    figure, axes = _figure(6.4, 3.6)
    # One absurd reward must not squeeze all the others into one bar: what lies far out is in the last bar.
    most = float(np.abs(difference).max(initial=0))
    reach = min(most, 6 * float(np.median(np.abs(difference)))) if len(difference) else 1.0
    reach = reach or most or 1.0
    inside = np.clip(difference, -reach, reach)
    half = max(3, min(15, round(len(difference) ** 0.5)))
    # An even number of bins around zero, so that none mixes wins with losses.
    edges = np.linspace(-reach, reach, 2 * half + 1)
    ties = int((difference == 0).sum())
    counts, _ = np.histogram(inside[difference != 0], edges)
    colours = [CANDIDATE if left >= 0 else CHAMPION for left in edges[:-1]]
    axes.bar(edges[:-1], counts, width=np.diff(edges) * 0.92, align="edge", color=colours)
    if ties:
        width = edges[half + 1] - edges[half]
        axes.bar(0, ties, width * 0.92, bottom=counts[half], align="edge", color=TIE, label=f"{ties} ties")
        axes.legend(loc="upper left", frameon=False, labelcolor=INK, handlelength=1.0)
    axes.axvline(0, color=INK, linewidth=1)
    if len(difference):
        mean = float(difference.mean())  # also of what lies beyond
        axes.axvline(mean, color=ACCENT, linewidth=1.6, linestyle=(0, (4, 2)))
        axes.annotate(
            f"mean {mean:+.2f}",
            (mean, 1),
            xycoords=("data", "axes fraction"),
            xytext=(4, -10),
            textcoords="offset points",
            color=ACCENT,
        )
    beyond = f" (last bar: {reach:.2g} or more)" if most > reach else ""
    _label(axes, f"reward of the candidate minus reward of the champion{beyond}", "replies")
    return _svg(figure, "rewards", "Histogram of reward differences")


def length_scatter(rows: pa.Table) -> str:
    """Tokens of the candidate's reply against the champion's, by who won."""
    champion = np.asarray(rows["champion_tokens"].to_numpy(), dtype=float)
    candidate = np.asarray(rows["candidate_tokens"].to_numpy(), dtype=float)
    difference = np.asarray(rows["candidate_reward"].to_numpy()) - np.asarray(
        rows["champion_reward"].to_numpy()
    )
    keep = np.linspace(0, len(champion) - 1, min(MAX_DOTS, len(champion))).astype(int)
    champion, candidate, difference = champion[keep], candidate[keep], difference[keep]
    figure, axes = _figure(6.4, 3.6)
    most = max(1.0, float(np.max(champion, initial=0)), float(np.max(candidate, initial=0))) * 1.06
    axes.plot(
        [0, most], [0, most], color=TIE, linewidth=1.2, linestyle=(0, (4, 2)), label="same length", zorder=1
    )
    for chosen, colour, label in (
        (difference < 0, CHAMPION, "champion better"),
        (difference == 0, TIE, "tie"),
        (difference > 0, CANDIDATE, "candidate better"),
    ):
        if chosen.any():
            axes.scatter(
                champion[chosen], candidate[chosen], s=17, color=colour, alpha=0.65, linewidths=0, label=label
            )
    axes.set_xlim(0, most)
    axes.set_ylim(0, most)
    _label(axes, "tokens of the champion's reply", "tokens of the candidate's")
    if len(champion):
        axes.legend(loc="upper left", frameon=False, labelcolor=INK, handletextpad=0.1)
    return _svg(figure, "lengths", "Length of the candidate's replies against the champion's")


def training_curve(curve: Sequence[Mapping[str, float]]) -> str | None:
    """Loss, margin and accuracy by step; None if no step logged any of them."""
    drawn = []
    for name, colour in (("loss", INK), ("margin", CANDIDATE), ("accuracy", ACCENT)):
        points = [(p["step"], p[name]) for p in curve if "step" in p and p.get(name) is not None]
        finite = [(step, value) for step, value in points if np.isfinite(value)]
        if finite:
            drawn.append((name, colour, finite))
    if not drawn:
        return None
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6.4, 1.2 + 1.15 * len(drawn)), layout="constrained")
    panels = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, colour, points) in zip(panels, drawn, strict=True):
        _style(axes)
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, color=colour, linewidth=1.8, marker="o", markersize=2.6)
        axes.set_ylabel(name, color=SOFT)
        axes.yaxis.set_major_locator(MaxNLocator(4))
    panels[-1].set_xlabel("optimizer step", color=SOFT)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return _svg(figure, "training", "Training curve")


def calibration_curve(calibration: Calibration) -> str:
    """How often the reward model was right against how sure it was, with Wilson intervals."""
    figure, axes = _figure(6.4, 3.6)
    axes.plot([0.5, 1], [0.5, 1], color=TIE, linewidth=1.2, linestyle=(0, (4, 2)), label="perfect", zorder=1)
    said = np.array([one.confidence for one in calibration.bins])
    right = np.array([one.right for one in calibration.bins])
    low, high = (np.array([getattr(one, end) for one in calibration.bins]) for end in ("low", "high"))
    axes.errorbar(
        said, right, yerr=[right - low, high - right], fmt="none", ecolor=CANDIDATE, elinewidth=1.4, capsize=3
    )
    axes.plot(said, right, color=CANDIDATE, linewidth=1.2, marker="o", markersize=5, label="reward model")
    axes.legend(loc="lower right", frameon=False, labelcolor=INK)
    axes.set_xlim(0.49, 1.01)
    axes.set_ylim(min(0.4, float(low.min()) - 0.03), 1.02)
    _label(axes, "confidence of the reward model", "share it got right")
    return _svg(figure, "calibration", "Calibration of the reward model")


def k_shot_curves(curves: Mapping[str, KShot]) -> str | None:
    """Gain over the shared taste alone by how many votes of a person were seen; None where no curve has a point."""
    drawn = {who: curve.points for who, curve in curves.items() if curve.points}
    if not drawn:
        return None
    figure, axes = _figure(6.4, 3.6)
    ks = sorted({point.k for points in drawn.values() for point in points})
    axes.axhline(0, color=TIE, linewidth=1.2, linestyle=(0, (4, 2)), label="the shared taste alone", zorder=1)
    for i, ((who, points), colour) in enumerate(zip(drawn.items(), (CANDIDATE, ACCENT, INK), strict=False)):
        # Beside one another, so that no interval hides another.
        x = [ks.index(point.k) + 0.12 * (i - (len(drawn) - 1) / 2) for point in points]
        value, low, high = np.array([(p.gain.value, p.gain.low, p.gain.high) for p in points]).T
        span = np.nan_to_num([value - low, high - value], nan=0.0, posinf=0.0)
        axes.errorbar(x, value, yerr=span, fmt="none", ecolor=colour, elinewidth=1.4, capsize=3)
        axes.plot(x, value, color=colour, linewidth=1.2, marker="o", markersize=5, label=who)
    axes.set_xticks(range(len(ks)), [str(k) for k in ks])
    axes.legend(loc="best", frameon=False, labelcolor=INK)
    _label(axes, "votes of the person that it has seen", "nats per vote below the shared taste")
    return _svg(figure, "k-shot", "How well people are known after some of their votes")


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    _style(axes)
    return figure, axes


def _style(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)
    axes.tick_params(colors=SOFT, length=0, pad=5)
    axes.grid(axis="y", color=LINE, linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=SOFT)
    axes.set_ylabel(y, color=SOFT)


def _svg(figure: Figure, name: str, title: str) -> str:
    """The figure as an `<svg>` element for inlining: responsive, themed, the same bytes every time."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    # The page's own background, light or dark, is to be seen.
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)

    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10}
    target = io.StringIO()
    with matplotlib.rc_context(settings):
        FigureCanvasSVG(figure).print_svg(target, metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    # matplotlib's own rule is for `*`, which would reach every element of the page.
    text = re.sub(r"<style.*?</style>", "", text, flags=re.S)
    text = re.sub(r'<svg[^>]*viewBox="([^"]*)"[^>]*>', _opening(name, title), text, count=1)
    # Several plots share one page: their ids must differ.
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(
        r"font: ((?:[a-z0-9]+ )*?)([\d.]+px)[^;\"]*(?=[;\"])",
        lambda found: f"font-size: {found[2]}" + ("; font-weight: 700" if "700" in found[1] else ""),
        text,
    )
    for marker, variable in VARIABLES.items():
        text = text.replace(marker, f"var({variable})")
    return text


def _opening(name: str, title: str) -> str:
    return (
        rf'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="\1" '
        rf'role="img" aria-label="{title}" class="plot plot-{name}"><title>{title}</title>'
    )
