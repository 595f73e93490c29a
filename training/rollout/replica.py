"""A copy of the policy to sample from: the adapter is merged, the number format is the one the machine is fast in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.rollout.engine import RolloutError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PREFIX = "base_model.model."


class Replica:
    """Base weights plus scale * B A, written anew from the policy's own base weights at every update.

    Rounding therefore does not add up over updates. Weights that no adapter touches are the policy's own tensors
    where the format is the same, so that they are in memory once.
    """

    def __init__(self, base: Path, policy: Any, dtype: torch.dtype) -> None:
        """Build it from the base's directory and a PEFT model of the policy.

        Raises:
            RolloutError: the adapter is not plain LoRA.
        """
        from transformers import AutoModelForCausalLM

        config = policy.peft_config["default"]
        _check_plain(config)
        root = math.sqrt(config.r) if getattr(config, "use_rslora", False) else config.r
        self.scale = config.lora_alpha / root
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
        self.model = model.eval().requires_grad_(False).to(next(policy.parameters()).device)
        self._originals = _originals(policy)
        self._share(policy, dtype)

    def update(self, adapter: Mapping[str, Tensor]) -> None:
        """Take over an adapter's weights.

        Raises:
            RolloutError: it adapts other layers than the policy did that this was built from.
        """
        import torch

        halves: dict[str, dict[str, Tensor]] = {}
        for key, value in adapter.items():
            name, _, half = key.removesuffix(".weight").rpartition(".")
            halves.setdefault(name.removeprefix(PREFIX), {})[half] = value
        odd = sorted(halves.keys() ^ self._originals.keys())
        odd += [name for name, parts in halves.items() if parts.keys() != {"lora_A", "lora_B"}]
        if odd:
            raise RolloutError("The adapter does not fit the engine's model.", got=", ".join(odd[:3]))
        with torch.no_grad():
            for name, parts in halves.items():
                weight, original = self.model.get_submodule(name).weight, self._originals[name]
                a, b = (parts[half].to(original.device).float() for half in ("lora_A", "lora_B"))
                delta = b @ a
                weight.copy_(original.float().add(delta, alpha=self.scale))

    def _share(self, policy: Any, dtype: torch.dtype) -> None:
        own = dict(self.model.named_parameters())
        for name, source in policy.get_base_model().named_parameters():
            shared = own.get(name)
            if shared is not None and source.dtype == dtype and not source.requires_grad:
                shared.data = source.data


def _originals(policy: Any) -> dict[str, Tensor]:
    """Base weights of the layers with an adapter, by the layer's name in the base; the policy's own tensors."""
    return {
        name: module.base_layer.weight.detach()
        for name, module in policy.get_base_model().named_modules()
        if hasattr(module, "base_layer") and hasattr(module, "lora_A")
    }


def _check_plain(config: Any) -> None:
    odd = {
        name: value
        for name in ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out")
        if (value := getattr(config, name, None))
    }
    if odd or getattr(config, "bias", "none") != "none" or not hasattr(config, "lora_alpha"):
        raise RolloutError(
            "The engine merges plain LoRA adapters only.",
            got=odd or f"bias {getattr(config, 'bias', None)}, {type(config).__name__}",
            next_step="make the first champion with the defaults of [model.lora]",
        )
