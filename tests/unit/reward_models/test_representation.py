"""Vectors of replies: those of one text after the other by transformers alone, whatever is shared, kept or cached."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from reward_models import embedding
from reward_models.features import NAMES
from reward_models.representation import last_user_message, represent
from tests.unit.reward_models.made import text


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    embedding.release()
    yield
    embedding.release()


def plainly(base: Path, prompts: list[list[dict[str, str]]], replies: list[str], most: int) -> np.ndarray:
    """(B, E) as the definition says: each text alone through the lower half of the layers, no cache of any kind."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModel.from_pretrained(base, dtype=torch.float32).eval()
    model.layers = model.layers[:1]  # of two
    found = []
    for prompt, reply in zip(prompts, replies, strict=True):
        asked = tokenizer(last_user_message(prompt), add_special_tokens=False)["input_ids"][-most // 4 :]
        said = tokenizer("\n" + reply, add_special_tokens=False)["input_ids"][: most - len(asked)]
        with torch.inference_mode():
            hidden = model(input_ids=torch.tensor([asked + said]), use_cache=False).last_hidden_state[0]
        found.append(hidden[len(asked) :].mean(0).numpy())
    return np.array(found)


def groups() -> tuple[list[list[dict[str, str]]], list[str]]:
    """Completions of the same prompts, as a policy samples them, and odd texts."""
    dice = random.Random(3)
    asked = [
        "What about the harbour?",
        text(60, dice),  # longer than what is read of a prompt
        "Ça va ? 你好 🙂",
        "",
    ]
    prompts = [[{"role": "user", "content": one}] for one in asked for _ in range(6)]
    replies = [text(dice.randint(1, 90), dice) for _ in prompts]
    replies[1], replies[7], replies[14] = "", "Да. 是的 🙂", replies[13]
    prompts += [
        [{"role": "user", "content": "Before."}, {"role": "assistant", "content": "Yes."}, *prompts[0]],
        [{"role": "system", "content": "Nobody asks."}],
    ]
    return prompts, [*replies, "After a turn.", "No user."]


def test_vectors_are_those_of_each_text_alone(tiny_base: Path) -> None:
    prompts, replies = groups()
    assert embedding.loaded(tiny_base, "x").share  # what is tested here
    found = represent(tiny_base, prompts, replies, max_tokens=64)
    np.testing.assert_allclose(found[:, : -len(NAMES)], plainly(tiny_base, prompts, replies, 64), atol=1e-5)
    order = np.random.default_rng(0).permutation(len(prompts))
    mixed = represent(tiny_base, [prompts[i] for i in order], [replies[i] for i in order], max_tokens=64)
    np.testing.assert_allclose(mixed, found[order], atol=1e-5)


def test_the_same_reply_to_the_same_message_is_embedded_once(tiny_base: Path) -> None:
    prompts, replies = groups()
    calls: list[tuple[int, int]] = []
    once = represent(tiny_base, prompts, replies, max_tokens=64)
    twice = represent(
        tiny_base, prompts * 3, replies * 3, max_tokens=64, progress=lambda *done: calls.append(done)
    )
    np.testing.assert_array_equal(twice, np.concatenate([once] * 3))
    distinct = len({(last_user_message(p), r) for p, r in zip(prompts, replies, strict=True)})
    assert distinct < len(prompts)
    assert calls[-1] == (distinct, distinct) and [done for done, _ in calls] == sorted(d for d, _ in calls)


def test_no_replies_are_no_vectors(tiny_base: Path) -> None:
    assert represent(tiny_base, [], [], max_tokens=64).shape[0] == 0


def test_a_prompt_for_each_reply(tiny_base: Path) -> None:
    with pytest.raises(ValueError, match="zip"):
        represent(tiny_base, [[]], ["a", "b"], max_tokens=64)


def test_part_in_the_cache_and_part_not(tiny_base: Path, tmp_path: Path) -> None:
    prompts, replies = groups()
    whole = represent(tiny_base, prompts, replies, max_tokens=64)
    first = represent(tiny_base, prompts[:10], replies[:10], max_tokens=64, cache_dir=tmp_path / "c")
    both = represent(tiny_base, prompts, replies, max_tokens=64, cache_dir=tmp_path / "c")
    np.testing.assert_array_equal(both[:10], first)
    np.testing.assert_allclose(both, whole, atol=1e-5)


def count_readings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    read, found = embedding._read, []

    def counted(path: Path, identity: str) -> embedding.Base:
        found.append(path)
        return read(path, identity)

    monkeypatch.setattr(embedding, "_read", counted)
    return found


def test_the_base_is_read_once_and_again_when_its_files_change(
    tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file, save_file

    base = tmp_path / "base"
    shutil.copytree(tiny_base, base)
    readings = count_readings(monkeypatch)
    prompts, replies = groups()
    before = represent(base, prompts, replies, max_tokens=64)
    represent(base, prompts, [r + "!" for r in replies], max_tokens=64)
    assert readings == [base]
    tensors = load_file(base / "model.safetensors")
    save_file({k: v * 1.5 for k, v in tensors.items()}, base / "model.safetensors", {"format": "pt"})
    after = represent(base, prompts, replies, max_tokens=64)
    assert readings == [base, base]
    assert not np.allclose(before, after)
    represent(tiny_base, prompts[:1], replies[:1], max_tokens=64)
    represent(base, prompts[:1], replies[:1], max_tokens=64)
    assert readings == [base, base, tiny_base, base]  # one is kept, no more
    embedding.release()
    represent(base, prompts[:1], replies[:1], max_tokens=64)
    assert len(readings) == 5


def test_threads_share_one_base_and_get_the_same_vectors(
    tiny_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = count_readings(monkeypatch)
    prompts, replies = groups()
    found: dict[int, np.ndarray] = {}

    def ask(number: int) -> None:
        found[number] = represent(tiny_base, prompts, replies, max_tokens=64)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert readings == [tiny_base]
    for n in range(6):
        np.testing.assert_allclose(found[n], found[0], atol=1e-6)
