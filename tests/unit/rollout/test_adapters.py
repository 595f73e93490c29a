"""What identifies an adapter, and what makes it loadable."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rollout.adapters import check, digest
from rollout.errors import BrokenAdapter


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2}))
    save_file({"layer.lora_A.weight": np.ones((2, 4), np.float32)}, str(folder / "adapter_model.safetensors"))
    return folder


def test_a_complete_adapter_passes_and_keeps_its_digest(adapter: Path, tmp_path: Path) -> None:
    found = check(adapter)
    assert check(adapter, found) == found
    copy = tmp_path / "elsewhere"
    adapter.rename(copy)
    assert digest(copy) == found


def test_content_names_and_new_files_change_the_digest(adapter: Path) -> None:
    seen = {digest(adapter)}
    (adapter / "README.md").write_text("a")
    seen.add(digest(adapter))
    (adapter / "README.md").write_text("b")
    seen.add(digest(adapter))
    (adapter / "README.md").rename(adapter / "readme.md")
    seen.add(digest(adapter))
    (adapter / "sub").mkdir()
    (adapter / "readme.md").rename(adapter / "sub" / "readme.md")
    seen.add(digest(adapter))
    assert len(seen) == 5


def test_moving_a_border_between_files_changes_the_digest(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, parts in ((one, ("ab", "c")), (two, ("a", "bc"))):
        folder.mkdir()
        for name, text in zip("xy", parts, strict=True):
            (folder / name).write_text(text)
    assert digest(one) != digest(two)


def test_another_adapter_is_refused(adapter: Path) -> None:
    with pytest.raises(BrokenAdapter, match="sha256 differs"):
        check(adapter, "0" * 64)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("adapter_config.json", b"{", "cannot be read"),
        ("adapter_config.json", b"\xff\xfe", "cannot be read"),
        ("adapter_config.json", b"[]", "peft_type"),
        ("adapter_config.json", None, "cannot be read"),
        ("adapter_model.safetensors", None, "cannot be read"),
        ("adapter_model.safetensors", b"", "cannot be read"),
        ("adapter_model.safetensors", b"\x02\x00\x00\x00\x00\x00\x00\x00{}", "no tensors"),
    ],
)
def test_broken_files_are_named(adapter: Path, name: str, content: bytes | None, why: str) -> None:
    (adapter / name).unlink()
    if content is not None:
        (adapter / name).write_bytes(content)
    with pytest.raises(BrokenAdapter, match=why):
        check(adapter)


def test_truncated_weights_are_found(adapter: Path) -> None:
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(BrokenAdapter, match=r"adapter_model\.safetensors cannot be read"):
        check(adapter)


def test_links_missing_and_empty_directories_are_refused(adapter: Path, tmp_path: Path) -> None:
    (adapter / "link").symlink_to("/etc/hostname")
    with pytest.raises(BrokenAdapter, match="links"):
        check(adapter)
    with pytest.raises(BrokenAdapter, match="no adapter directory"):
        check(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BrokenAdapter, match="empty"):
        check(tmp_path / "empty")
