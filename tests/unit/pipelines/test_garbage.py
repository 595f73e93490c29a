"""The collector pauses and goes on, whatever happens in between."""

from __future__ import annotations

import gc

import pytest

from pipelines.garbage import uncollected


def test_it_pauses_and_goes_on() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()  # the outer one still holds
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), uncollected():
        1 / 0  # noqa: B018
    assert gc.isenabled()
