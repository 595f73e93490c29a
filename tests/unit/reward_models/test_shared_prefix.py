"""A prompt that is read once gives the numbers of one that is read with every completion."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reward_models import shared_prefix
from reward_models.shared_prefix import passes, shares_prefixes
from reward_models.text_batches import Text

PAD = 2


@pytest.fixture(scope="module")
def model(tiny_base: Path) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(tiny_base, dtype=torch.float32).eval()


def texts(groups: int, each: int, *, seed: int = 0) -> list[Text]:
    """Groups of rests after a common prefix, and as many texts without company or prefix; mixed."""
    dice = random.Random(seed)

    def ids(most: int) -> tuple[int, ...]:
        return tuple(dice.randrange(3, 250) for _ in range(dice.randint(1, most)))

    made = [Text(prefix, ids(60)) for prefix in (ids(40) for _ in range(groups)) for _ in range(each)]
    made += [Text(ids(40), ids(60)) for _ in range(groups)] + [Text((), ids(60)) for _ in range(groups)]
    dice.shuffle(made)
    return made


def one_by_one(model: Any, text: Text) -> np.ndarray:
    with torch.inference_mode():
        hidden = model(input_ids=torch.tensor([text.prefix + text.rest])).last_hidden_state
    return hidden[0, len(text.prefix) :].numpy()


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("most", [shared_prefix.CPU_TOKENS, 70])
def test_shared_or_not_every_hidden_state_is_that_of_the_text_alone(
    model: Any, share: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_prefix, "CPU_TOKENS", most)
    monkeypatch.setattr(shared_prefix, "_KEPT_TOKENS", most)  # prefixes are kept a few at a time
    some, seen = texts(7, 5), []
    for rows, output, is_rest in passes(model, some, pad=PAD, share=share):
        for row, hidden, real in zip(rows, output.last_hidden_state, is_rest, strict=True):
            np.testing.assert_allclose(hidden[real].numpy(), one_by_one(model, some[row]), atol=1e-5)
            seen.append(row)
    assert sorted(seen) == list(range(len(some)))


def test_a_shared_prefix_goes_through_the_model_once(model: Any) -> None:
    prefix = tuple(range(100, 130))
    some = [Text(prefix, (200 + n, 7, 8)) for n in range(8)]
    tokens = {}
    for share in (True, False):
        seen: list[int] = []
        hook = model.embed_tokens.register_forward_hook(
            lambda _m, given, _o, s=seen: s.append(given[0].numel())
        )
        list(passes(model, some, pad=PAD, share=share))
        hook.remove()
        tokens[share] = sum(seen)
    assert tokens == {True: 30 + 8 * 3, False: 8 * 33}


def test_what_the_prefix_is_changes_the_rest(model: Any) -> None:
    some = [Text(prefix, (50, 51)) for prefix in ((10, 11), (10, 12)) for _ in range(2)]
    found: dict[int, np.ndarray] = {}
    for rows, output, _ in passes(model, some, pad=PAD, share=True):
        found.update(zip(rows, output.last_hidden_state.numpy(), strict=True))
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert np.abs(found[0] - found[2]).max() > 1e-2


def test_only_plain_causal_attention_is_shared(model: Any) -> None:
    from transformers import BertConfig, BertModel, MistralConfig, MistralModel

    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    assert shares_prefixes(model)
    both_ways = BertModel(BertConfig(**small, architectures=["BertForMaskedLM"]))
    assert not shares_prefixes(both_ways)
    causal = {**small, "num_key_value_heads": 2, "vocab_size": 50, "architectures": ["MistralForCausalLM"]}
    assert not shares_prefixes(MistralModel(MistralConfig(**causal, sliding_window=8)))
    assert shares_prefixes(MistralModel(MistralConfig(**causal, sliding_window=None)))


def test_a_model_that_looks_both_ways_gets_whole_texts() -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(
        BertConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
    ).eval()
    some = [Text((5, 6, 7), (8, 9)), Text((5, 6, 7), (10,)), Text((5,), (8, 9))]
    for rows, output, is_rest in passes(model, some, pad=0, share=shares_prefixes(model)):
        for row, hidden, real in zip(rows, output.last_hidden_state, is_rest, strict=True):
            np.testing.assert_allclose(hidden[real].numpy(), one_by_one(model, some[row]), atol=1e-5)


def test_no_texts_are_no_passes(model: Any) -> None:
    assert list(passes(model, [], pad=PAD, share=True)) == []
