"""Text that users wrote does nothing to a terminal."""

from __future__ import annotations

import pytest

from palate.console import Out


def test_escape_sequences_markup_and_emoji_codes_are_shown_not_obeyed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = Out()
    hostile = "\x1b]0;pwned\x07 \x1b[2J [red]red[/red] :100: ünïcode 日本"
    out.say(hostile)
    out.table("t", ["c"], [[hostile]])
    shown = capsys.readouterr().out
    assert "\x1b]" not in shown and "\x1b[2J" not in shown and "\x07" not in shown
    assert "[red]red[/red]" in shown and ":100:" in shown and "ünïcode 日本" in shown
