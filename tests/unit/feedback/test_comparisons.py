"""Which fields of a comparison hold the replies."""

from __future__ import annotations

import pytest

from feedback.comparisons import reply_fields


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["prompt", "model_a", "model_b", "response_a", "response_b"], ["response_a", "response_b"]),
        (["prompt", "model_a", "model_b"], ["model_a", "model_b"]),
        (["prompt", "response-1", "response-2", "response-3"], ["response-1", "response-2", "response-3"]),
        (["left", "right", "answer_a"], ["left", "right"]),
        (["a_response", "b_response", "model_a", "model_b"], ["a_response", "b_response"]),
        (["question", "answer"], ["answer"]),
    ],
)
def test_reply_fields(names: list[str], wanted: list[str]) -> None:
    assert reply_fields(names) == wanted
