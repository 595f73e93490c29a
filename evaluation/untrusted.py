"""Text that users and models wrote, made fit to be shown.

Escaping keeps such text from being markup. It does not keep it from being a wall of 100,000 characters, from
reversing the line it stands in (U+202E), or from hiding what it says; that is done here, visibly.
"""

from __future__ import annotations

import re

# Controls but tab and newline, bidirectional controls, invisible fillers, tag characters, lone surrogates.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
# More marks on one letter than any language needs, which would paint over the lines around it.
_STACKED = re.compile(
    "([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})"
    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)


def visible(text: str) -> str:
    """The text with what would be invisible or rearrange the page written out as `⟨U+202E⟩`."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _STACKED.sub(r"\1⟨…marks⟩", text)
    return _HIDDEN.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text)


def clipped(text: str, limit: int) -> tuple[str, int]:
    """(at most `limit` characters of the text, how many are left out)."""
    return (text, 0) if len(text) <= limit else (text[:limit], len(text) - limit)
