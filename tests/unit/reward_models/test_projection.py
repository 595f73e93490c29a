"""Standardised columns: the same directions off the covariance as off the rows, turned one way."""

from __future__ import annotations

import numpy as np
import pytest

from reward_models.features import NAMES
from reward_models.projection import Projection, principal_directions

F = len(NAMES)


def vectors(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Embeddings of falling spread around a mean far from zero, then named features."""
    dice = np.random.default_rng(seed)
    turned, _ = np.linalg.qr(dice.normal(size=(columns, columns)))
    x = dice.normal(size=(rows, columns)) * np.geomspace(100, 0.01, columns) @ turned.T + 50
    return np.concatenate([x, dice.normal(size=(rows, F))], axis=1)


@pytest.mark.parametrize(("rows", "columns"), [(20_000, 40), (41, 40), (40, 40), (12, 40)])
def test_the_subspace_is_that_of_the_singular_vectors(rows: int, columns: int) -> None:
    x = vectors(rows, columns)[:, :columns]
    k = min(10, rows)
    found = principal_directions(x, x.mean(axis=0), k)
    _, _, exact = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(found @ found.T, exact[:k].T @ exact[:k], atol=1e-6)
    np.testing.assert_allclose(
        np.abs((found * exact[:k].T).sum(axis=0)), 1, atol=1e-6
    )  # one by one, in order


def test_directions_are_turned_one_way() -> None:
    x = vectors(300, 12)[:, :12]
    for sign in (1, -1):
        found = principal_directions(sign * x, sign * x.mean(axis=0), 12)
        assert (found[np.abs(found).argmax(axis=0), np.arange(12)] > 0).all()
    np.testing.assert_allclose(found, principal_directions(x, x.mean(axis=0), 12), atol=1e-9)


def test_columns_have_unit_spread_and_those_that_never_vary_count_nothing() -> None:
    raw = vectors(10_000, 8)
    raw[:, 8 + 3] = 2.0  # a feature that is always the same
    projection = Projection.fit(raw, 4)
    x = projection(raw)
    assert x.shape == (10_000, 4 + F)
    spread = x.std(axis=0)
    assert spread[4 + 3] == 0
    np.testing.assert_allclose(np.delete(spread, 4 + 3), 1, atol=0.01)  # a few lie beyond five deviations
    np.testing.assert_allclose(x[:7], projection(raw[:7]), atol=1e-12)


def test_all_alike_no_embedding_and_nothing_kept() -> None:
    same = Projection.fit(np.ones((50, 5 + F)), 3)
    assert not same(np.ones((2, 5 + F))).any()
    assert Projection.fit(vectors(50, 5), 0).axes.shape == (5 + F, F)
    assert Projection.fit(vectors(3, 5), 9).axes.shape == (5 + F, 3 + F)
    assert Projection.fit(vectors(50, 5), 9)(np.zeros((0, 5 + F))).shape == (0, 5 + F)
