"""The formulas by hand against literal numbers, and their derivatives against differences."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import pytest

from training.oracles import hand
from training.oracles.grpo import ADVANTAGES, ALL, CHAMPION, LOGPS, OLD, REPLIES


def test_dpo() -> None:
    # beta 0.5; log-ratios 1 and -2: h = 1.5, -log s(1.5) = log(1 + e^-1.5), s(-1.5) = 0.1824255.
    loss, by = hand.dpo("sigmoid", 1.0, -2.0, (3, 3), 0.5, 0.1, 0.0)
    assert loss == pytest.approx(0.2014132779)
    assert by == pytest.approx((-0.0912127617, 0.0912127617))
    # (0.9 * 0.2014133 - 0.1 * 1.7014133) / 0.8
    assert hand.dpo("robust", 1.0, -2.0, (3, 3), 0.5, 0.1, 0.0).loss == pytest.approx(0.0139132779)
    # 2 / 2 - -2 / 4 - 1 / (2 * 0.5) = 0.5, squared; derivatives 2 * 0.5 / 2 and -2 * 0.5 / 4.
    loss, by = hand.dpo("ipo", 2.0, -2.0, (2, 4), 0.5, 0.1, 0.0)
    assert (loss, *by) == pytest.approx((0.25, 0.5, -0.25))
    # An offset of 0.5 leaves h = 1: log(1 + e^-1).
    assert hand.dpo("sigmoid", 1.0, -2.0, (3, 3), 0.5, 0.0, 0.5).loss == pytest.approx(0.3132616875)


def test_kto() -> None:
    # 0.5 * (0.8 - 0.2) = 0.3, s(0.3) = 0.5744425168: one minus it, and -0.5 s (1 - s).
    loss, by = hand.kto(0.8, True, 0.2, 0.5)
    assert (loss, by[0]) == pytest.approx((0.4255574832, -0.1222291558))
    assert hand.kto(0.8, False, 0.2, 0.5).loss == pytest.approx(0.5744425168)


def test_surrogate_in_its_four_corners() -> None:
    def at(ratio: float, gain: float) -> tuple[float, float]:
        found = hand.surrogate(log(ratio) - 1, -1, gain, 0.2, 0.28)
        return found.loss, found.by[0]

    assert at(1.6, 1.5) == pytest.approx((-1.92, 0.0))  # a good token is pushed up to 1.28 and no further
    assert at(0.5, 1.5) == pytest.approx((-0.75, -0.75))
    assert at(0.5, -0.5) == pytest.approx((0.4, 0.0))  # a bad one down to 0.8 and no further
    assert at(1.6, -0.5) == pytest.approx((0.8, 0.8))


def test_distances() -> None:
    loss, by = hand.k3(-1.5, -0.8)  # e^0.7 - 1 - 0.7
    assert (loss, by[0]) == pytest.approx((0.3137527075, -1.0137527075))
    # (0.5, 0.5) against (0.8, 0.2): 0.5 log(0.5 / 0.8) + 0.5 log(0.5 / 0.2)
    loss, by = hand.divergence((0.0, 0.0), (log(4), 0.0))
    assert (loss, *by) == pytest.approx((0.2231435513, 0.3, -0.3))


def test_grpo_counts_tokens_as_each_loss_says() -> None:
    # Ratio 1 and no KL: a token's loss is -A. Replies of 4, 2, 3 and 6 tokens:
    # -(1.5 * 4 - 0.5 * 2 + 0.25 * 3 - 2 * 6) = 6.25.
    rows = [[-1.0] * len(reply) for reply in REPLIES]

    def loss(kind: str, kept: tuple[bool, ...] = ALL) -> float:
        return hand.grpo(kind, rows, rows, rows, ADVANTAGES, beta=0.0, clip=(0.2, 0.28), limit=10, kept=kept)[
            0
        ]

    assert loss("dr_grpo") == pytest.approx(6.25 / 40)
    assert loss("dapo") == loss("bnpo") == pytest.approx(6.25 / 15)
    assert loss("grpo") == pytest.approx(0.75 / 4)
    # Without the last reply: -5.75 over 9 tokens, 3 replies.
    three = (True, True, True, False)
    assert loss("dr_grpo", three) == pytest.approx(-5.75 / 30)
    assert loss("dapo", three) == pytest.approx(-5.75 / 9)
    assert loss("grpo", three) == pytest.approx(-1.25 / 3)


@pytest.mark.parametrize("kind", ["dr_grpo", "dapo", "grpo"])
def test_derivatives_of_grpo_are_differences_of_its_loss(kind: str) -> None:
    kept = (True, True, False, True)

    def at(moved: list[list[float]]) -> tuple[float, list[list[float]]]:
        return hand.grpo(
            kind, moved, OLD, CHAMPION, ADVANTAGES, beta=0.3, clip=(0.2, 0.28), limit=6, kept=kept
        )

    slopes, h = at(LOGPS)[1], 1e-6
    for row, reply in enumerate(LOGPS):
        for token in range(len(reply)):
            up, down = ([[*r] for r in LOGPS] for _ in range(2))
            up[row][token] += h
            down[row][token] -= h
            assert slopes[row][token] == pytest.approx((at(up)[0] - at(down)[0]) / (2 * h), abs=1e-8)


@pytest.mark.parametrize("kind", ["sigmoid", "robust", "ipo"])
def test_derivatives_of_the_others_are_differences_too(kind: str) -> None:
    def check(loss: Callable[[float], float], slope: float, at: float) -> None:
        assert slope == pytest.approx((loss(at + 1e-6) - loss(at - 1e-6)) / 2e-6, abs=1e-8)

    def pair(better: float, worse: float) -> hand.Slope:
        return hand.dpo(kind, better, worse, (3, 2), 0.5, 0.1, 0.25)

    check(lambda x: pair(x, 0.4).loss, pair(0.7, 0.4).by[0], 0.7)
    check(lambda x: pair(0.7, x).loss, pair(0.7, 0.4).by[1], 0.4)
    for liked in (True, False):
        check(lambda x, y=liked: hand.kto(x, y, 0.2, 0.5).loss, hand.kto(0.7, liked, 0.2, 0.5).by[0], 0.7)
    check(lambda x: hand.k3(x, -1.0).loss, hand.k3(-1.3, -1.0).by[0], -1.3)
    check(
        lambda x: hand.divergence((0.3, -0.2), (x, 0.1)).loss,
        hand.divergence((0.3, -0.2), (0.5, 0.1)).by[0],
        0.5,
    )
