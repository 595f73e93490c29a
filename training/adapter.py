"""LoRA adapters: the first champion, and where a model is adapted."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class LoraSettings(BaseModel):
    """Shape of the adapter. It is fixed by the first champion; every later update continues it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    r: int = Field(default=16, ge=1)
    """Rank."""
    alpha: int = Field(default=32, ge=1)
    """Scale: the update is multiplied by alpha / r."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the adapter's input."""
    target_modules: str = "all-linear"
    """Which linear layers are adapted."""


def new_adapter(base: Path, base_id: str, output: Path, settings: LoraSettings, seed: int) -> Path:
    """Write an untrained adapter (B = 0, so it answers exactly as the base) and return its directory.

    It is the first champion: from then on "continue from the champion's adapter" needs no special case, and any
    engine that loads PEFT directories can serve it. The directory appears complete or not at all.

    Source: Hu et al. 2021, LoRA (arXiv 2106.09685), section 4.1: B starts at zero.
    """
    if (output / "adapter_config.json").is_file():
        return output
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, set_seed

    set_seed(seed)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=settings.target_modules,
        task_type="CAUSAL_LM",
    )
    save_adapter(get_peft_model(model, config), base_id, output)
    return output


def save_adapter(model: Any, base_id: str, output: Path) -> None:
    """Save the adapter `default` of a PEFT model as a plain directory, atomically.

    The base is named by its id instead of this machine's path: a path means nothing to whoever serves it, and the
    same training must give the same bytes everywhere.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        model.peft_config["default"].base_model_name_or_path = base_id
        model.save_pretrained(staging, selected_adapters=["default"])
        (staging / "README.md").unlink(missing_ok=True)
        shutil.rmtree(output, ignore_errors=True)
        os.replace(staging, output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
