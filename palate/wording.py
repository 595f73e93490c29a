"""How numbers of things and long texts are said in a line."""

from __future__ import annotations


def counted(n: int, noun: str, plural: str = "") -> str:
    """`1 event`, `2 events`.

    Args:
        n: how many.
        noun: what one of them is called.
        plural: what several are called; by default the noun with an s.
    """
    return f"{n} {noun if n == 1 else plural or noun + 's'}"


def flat(text: object, length: int = 200) -> str:
    """A text in one line, cut where it is too long."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= length else line[: length - 1] + "…"
