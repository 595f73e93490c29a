"""What is said: numbers of things, next steps that can be typed, tables with something in them."""

from __future__ import annotations

import pytest

from palate.commands import options
from palate.console import Out
from palate.wording import counted


def test_one_is_not_several() -> None:
    assert [counted(n, "event") for n in (0, 1, 2)] == ["0 events", "1 event", "2 events"]
    assert counted(2, "entry", "entries") == "2 entries"


def test_next_steps_carry_the_options_of_this_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options.with_options("palate promote") == "palate promote"
    monkeypatch.setattr(options, "_given", ["--config", "a b.toml", "--set", "seed=1"])
    assert options.with_options("palate promote") == "palate promote --config 'a b.toml' --set seed=1"
    assert options.with_options("palate run (after more feedback)") == (
        "palate run --config 'a b.toml' --set seed=1 (after more feedback)"
    )
    assert options.with_options("`palate history`, then decide") == "`palate history`, then decide"


def test_a_table_without_rows_is_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    out = Out()
    out.table("Nobody", ["who"], [])
    out.table("", ["who"], [])
    assert capsys.readouterr().out == "Nobody\n"
