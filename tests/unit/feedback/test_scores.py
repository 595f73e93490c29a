"""What a named score says."""

from __future__ import annotations

import pytest

from feedback.scores import Scores, signal_of


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("thumbs", "Thumbs up", ("thumb", 1)),
        ("is_correct", "no", ("thumb", -1)),
        ("correct", "mostly", ("comment", {"text": "mostly"})),
        ("toxicity", "yes", ("comment", {"text": "yes"})),  # no verdict on the reply
    ],
)
def test_words_under_the_name_of_a_verdict(name, value, wanted):
    assert signal_of(name, value, Scores()) == wanted
