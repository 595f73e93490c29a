"""Champions to start from."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from training.adapter import LoraSettings, new_adapter

BASE_ID = "test:tiny"


@pytest.fixture(scope="session")
def fresh_champion(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained adapter: answers as the base."""
    output = tmp_path_factory.mktemp("champions") / "fresh"
    return new_adapter(tiny_base, BASE_ID, output, LoraSettings(r=4, alpha=8), seed=1)


@pytest.fixture(scope="session")
def moved_champion(fresh_champion: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that has learnt something, here noise: it does not answer as the base."""
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    output = tmp_path_factory.mktemp("champions") / "moved"
    shutil.copytree(fresh_champion, output)
    file = output / "adapter_model.safetensors"
    torch.manual_seed(5)
    tensors = {k: t + 0.1 * torch.randn_like(t) for k, t in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    return output


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 4 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield disk
    finally:
        # Lazily: the traceback of a failed write still holds its file open.
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
