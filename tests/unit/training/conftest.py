"""Champions to start from."""

from __future__ import annotations

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
