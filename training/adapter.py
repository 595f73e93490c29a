"""LoRA adapters: the first champion, and where a model is adapted."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from training.errors import TrainingError


class LoraSettings(BaseModel):
    """Shape of the adapter. It is fixed by the first champion; every later update continues it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    r: int = Field(default=16, ge=1)
    """Rank."""
    alpha: int = Field(default=32, ge=1)
    """Scale: the update is multiplied by alpha / r."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the adapter's input."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Which linear layers are adapted."""
    last_layers: int | None = Field(default=None, ge=1)
    """Adapt only this many of the last decoder layers; the backward pass then stops there. None adapts all."""
    full_weights: bool = False
    """Train the weights of these layers themselves, in full, instead of low-rank updates of them. The adapter is then
    as large as they are; `r`, `alpha` and `dropout` are not used, and learning rates are some ten times smaller."""


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
    low_rank = {"r": settings.r, "lora_alpha": settings.alpha, "lora_dropout": settings.dropout}
    shape = _whole(model, settings) if settings.full_weights else {**low_rank, **_where(model, settings)}
    config = LoraConfig(task_type="CAUSAL_LM", **shape)
    save_adapter(get_peft_model(model, config), base_id, output)
    return output


def _whole(model: Any, settings: LoraSettings) -> dict[str, Any]:
    """PEFT's words for whole layers: copies that it trains and saves beside the base's own.

    PEFT wants a low-rank layer, too. The smallest one is that, at a rank at which any change of its weight is possible.
    """
    import torch

    wanted = settings.target_modules
    depth = int(model.config.num_hidden_layers)
    first = 0 if settings.last_layers is None else max(0, depth - settings.last_layers)
    layers = model.get_decoder().layers
    linear = {
        f"layers.{number}.{name}": module
        for number in range(first, depth)
        for name, module in layers[number].named_modules()
        if isinstance(module, torch.nn.Linear)
        and (
            wanted == "all-linear"
            or name.rsplit(".", 1)[-1] in ([wanted] if isinstance(wanted, str) else wanted)
        )
    }
    if not linear:
        raise TrainingError(
            "No linear layer has that name.",
            got=wanted,
            allowed=", ".join(
                sorted({n.rsplit(".", 1)[-1] for n, m in layers[0].named_modules() if hasattr(m, "weight")})
            ),
            next_step="correct [model.lora] target_modules",
        )
    *whole, smallest = sorted(linear, key=lambda name: (-linear[name].weight.numel(), name))
    rank = min(linear[smallest].weight.shape)
    return {"target_modules": [smallest], "r": rank, "lora_alpha": rank, "modules_to_save": whole}


def _where(model: Any, settings: LoraSettings) -> dict[str, Any]:
    """PEFT's words for the layers to adapt; it takes a depth only together with layer names."""
    targets = settings.target_modules
    if settings.last_layers is None:
        return {"target_modules": targets if isinstance(targets, str) else list(targets)}
    import torch

    if targets == "all-linear":
        head = model.get_output_embeddings()
        linear = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head}
        targets = tuple(sorted({name.rsplit(".", 1)[-1] for name in linear}))
    depth = int(model.config.num_hidden_layers)
    names = [targets] if isinstance(targets, str) else list(targets)
    return {
        "target_modules": names,
        "layers_to_transform": list(range(max(0, depth - settings.last_layers), depth)),
    }


def save_adapter(model: Any, base_id: str, output: Path) -> None:
    """Save the adapter `default` of a PEFT model as a plain directory, atomically.

    The base is named by its id instead of this machine's path: a path means nothing to whoever serves it, and the
    same training must give the same bytes everywhere.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        model.peft_config["default"].base_model_name_or_path = base_id
        # Embeddings are never adapted here; deciding it "auto"matically would look `base_id` up on the hub. Of a base
        # model that is split over processes PEFT would first gather all the weights, of which it then writes none.
        trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        model.save_pretrained(
            staging, selected_adapters=["default"], state_dict=trained, save_embedding_layers=False
        )
        (staging / "README.md").unlink(missing_ok=True)
        # PEFT writes sets in whatever order this process hashes them; the digest of an adapter must not depend on it.
        config = json.loads((staging / "adapter_config.json").read_text())
        ordered = {k: sorted(v) if isinstance(v, list) else v for k, v in config.items()}
        (staging / "adapter_config.json").write_text(json.dumps(ordered, indent=2, sort_keys=True) + "\n")
        shutil.rmtree(output, ignore_errors=True)
        # mkdtemp makes private directories; whoever serves the adapter must be able to read it.
        staging.chmod(0o755)
        staging.replace(output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
