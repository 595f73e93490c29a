from __future__ import annotations

import itertools
import os
import subprocess
import sys
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from feedback.hygiene.near_duplicates import (
    MIN_CHARS,
    SHINGLE_CHARS,
    NearDuplicateConfig,
    bands,
    dropped,
    fold,
    signatures,
    similar,
)

CONFIG = NearDuplicateConfig()
LONG = "Please explain to me how photosynthesis works in the leaves of green plants, step by step, with chemistry."


def words(draw: Random, count: int) -> list[str]:
    return ["".join(draw.choices("abcdefghij", k=draw.randint(2, 8))) for _ in range(count)]


def jaccard(a: str, b: str) -> float:
    one, other = (
        {t[i : i + SHINGLE_CHARS] for i in range(len(t) - SHINGLE_CHARS + 1)} for t in (fold(a), fold(b))
    )
    return len(one & other) / len(one | other)


def test_case_punctuation_and_spaces_do_not_count():
    a, b = signatures([LONG, "  " + LONG.upper().replace(",", " -- ").replace(".", "!!") + "\n"])
    assert similar(a, b) == 1.0
    a, b = signatures(
        ["ＷＨＹ is the sky blue on a clear day in summer?", "why is the sky blue on a clear day in summer"]
    )
    assert similar(a, b) == 1.0


def test_the_share_of_equal_slots_estimates_the_jaccard_index():
    draw = Random(3)
    errors = []
    for changed in range(0, 60, 2):
        text = words(draw, 60)
        other = [*words(draw, changed), *text[changed:]]
        a, b = signatures([" ".join(text), " ".join(other)], 512)
        errors.append(similar(a, b) - jaccard(" ".join(text), " ".join(other)))
    # The standard error of one estimate is at most 0.022, that of their mean a fifth of it.
    assert max(map(abs, errors)) < 0.08
    assert abs(np.mean(errors)) < 0.015


def test_short_texts_match_exactly_or_not_at_all():
    texts = ["Why?", "why", "Why not?", "", "…", "x" * (MIN_CHARS - 1)]
    found = signatures(texts)
    assert similar(found[0], found[1]) == 1.0
    assert similar(found[3], found[4]) == 1.0  # nothing is left of either
    for a, b in itertools.combinations([0, 2, 3, 5], 2):
        assert similar(found[a], found[b]) < 0.1


def test_languages_without_spaces_are_compared_too():
    text = "世界上最高的山是什么山请告诉我它的高度和位置以及登山的历史最好详细一点谢谢你了我的朋友再见以及更多的内容"
    a, b, c = signatures([text, text.replace("高度", "深度"), text[::-1]])
    assert 0.5 < similar(a, b) < 1.0
    assert similar(a, c) < 0.1


@given(st.lists(st.text(max_size=80) | st.just(LONG), max_size=12))
@settings(derandomize=True, deadline=None, max_examples=80, database=None)
def test_a_signature_depends_on_its_text_alone(texts: list[str]):
    together = signatures(texts)
    assert together.shape == (len(texts), 128) and together.dtype == np.uint32
    for text, signature in zip(texts, together, strict=True):
        assert (signatures([text])[0] == signature).all()


def test_signatures_are_the_same_in_every_process_and_for_ever():
    code = (
        "import sys; from feedback.hygiene.near_duplicates import *; s = signatures([sys.argv[1], 'Why?']); "
        "print(s[:, :2].tolist(), bands(s, NearDuplicateConfig())[:, 0].tolist())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code, LONG],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
        ).stdout.strip()
        for seed, threads in (("1", "1"), ("2", "4"))
    }
    assert told == {GOLDEN}


GOLDEN = "[[906053595, 923529136], [4199626197, 1174897819]] [10912683808059976106, 3691477416697636145]"


def test_a_pair_that_counts_is_found_and_a_stranger_is_not():
    draw = Random(5)
    texts = []
    for _ in range(150):
        base = words(draw, 80)
        texts += [" ".join(base), " ".join([*base[:-2], *words(draw, 2)])]  # Jaccard about 0.95
    found = dropped(np.arange(len(texts)), signatures(texts), CONFIG)
    assert found[0::2].all() and not found[1::2].any()  # the weaker of each pair, and nothing else


def test_a_prompt_falls_to_any_stronger_one_even_to_one_that_falls_itself():
    draw = Random(9)
    chain = [words(draw, 40)]
    for place in range(4):  # each differs from the one before it by one word of forty
        chain.append([*chain[-1]])
        chain[-1][place * 8] = words(draw, 1)[0] + "changed"
    found = signatures([" ".join(text) for text in chain])
    near = [similar(a, b) >= CONFIG.threshold for a, b in itertools.pairwise(found)]
    assert near == [True] * 4 and similar(found[0], found[4]) < CONFIG.threshold
    assert dropped(np.array([1, 2, 3, 4, 5]), found, CONFIG).tolist() == [True] * 4 + [False]
    # In the middle of the chain the strongest takes only its neighbours; the ends fall to what fell.
    assert dropped(np.array([1, 2, 9, 4, 3]), found, CONFIG).tolist() == [True, True, False, True, True]


@given(st.integers(0, 2**32))
@settings(derandomize=True, deadline=None, max_examples=40, database=None)
def test_the_order_of_prompts_does_not_matter_and_the_rule_is_the_pairwise_one(seed: int):
    draw = Random(seed)
    base = words(draw, 30)
    texts = [" ".join(word if draw.random() > 0.04 else "other" for word in base) for _ in range(14)]
    texts += [" ".join(words(draw, 30)) for _ in range(4)]
    strength = np.array(draw.sample(range(100), len(texts)))
    found = signatures(texts)
    result = dropped(strength, found, CONFIG)
    order = draw.sample(range(len(texts)), len(texts))
    assert (dropped(strength[order], found[order], CONFIG) == result[order]).all()
    shared = bands(found, CONFIG)
    for i, lost in enumerate(result):
        stronger = [j for j in range(len(texts)) if strength[j] > strength[i]]
        beside = [
            j for j in stronger if (shared[i] == shared[j]).any() and similar(found[i], found[j]) >= 0.85
        ]
        assert lost == bool(beside)


def test_nothing_falls_where_it_is_switched_off():
    found = signatures([LONG, LONG])
    assert dropped(np.array([1, 2]), found, CONFIG).tolist() == [True, False]
    assert not dropped(np.array([1, 2]), found, NearDuplicateConfig(enabled=False)).any()
    assert not dropped(np.array([1]), found[:1], CONFIG).any()
    with pytest.raises(ValidationError, match="does not divide"):
        NearDuplicateConfig(bands=7)
