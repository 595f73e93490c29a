"""How numbers of things are said."""

from __future__ import annotations


def counted(n: int, noun: str, plural: str = "") -> str:
    """`1 event`, `2 events`.

    Args:
        n: how many.
        noun: what one of them is called.
        plural: what several are called; by default the noun with an s.
    """
    return f"{n} {noun if n == 1 else plural or noun + 's'}"
