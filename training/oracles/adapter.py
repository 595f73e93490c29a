"""Whether the adapter is what is trained, and whether what is saved is what was trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.oracles.finding import Comparison, oracle, same
from training.oracles.given import quiet

if TYPE_CHECKING:
    from torch import Tensor

OWN = ("dpo", "kto", "online", "words", "grpo")


@dataclass(frozen=True)
class Saver:
    """How an adapter is made ready and how it is kept."""

    load: Callable[[Any], Any]
    """From a `training.update.Champion` to a model whose adapter can be trained."""
    save: Callable[[Any, str, Path], None]
    """Called as `training.adapter.save_adapter`."""


def _own() -> Saver:
    from training.adapter import save_adapter
    from training.fit import load_champion

    return Saver(load_champion, save_adapter)


@oracle(
    *OWN,
    protects="an update that trains nothing, trains the base, or saves something else than it trained",
    reference="ms-swift#9855, rollouts of the base instead of the new adapter",
)
def adapter(subject: Saver | None) -> Iterator[Comparison]:
    """One step on a champion whose B is zero, saved and loaded again."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from training import tiny
    from training.adapter import save_adapter
    from training.update import Champion

    own = subject or _own()
    with quiet() as folder:
        save_adapter(tiny.policy(moved=0.0), tiny.BASE_ID, folder / "champion")
        model = own.load(Champion(tiny.base(), tiny.BASE_ID, folder / "champion"))
        ids = torch.arange(4, 20)[None]
        before = _halves(model)
        for _ in range(2):  # while B is zero, A has no gradient
            loss = model(input_ids=ids, labels=ids).loss
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for weight in model.parameters():
                    if weight.requires_grad and weight.grad is not None:
                        weight -= 0.5 * weight.grad
        after = _halves(model)
        for half, share in (("lora_A", 1.0), ("lora_B", 1.0), ("base", 0.0)):
            moved = float((after[half] != before[half]).float().mean())
            yield Comparison(f"share of {half} that moved", moved, share, 0.05 if share else 0.0)
        kinds = {str(p.dtype) for p in model.parameters() if p.requires_grad}
        yield Comparison("number format of the adapter", " ".join(sorted(kinds)), "torch.float32")
        with torch.no_grad():
            trained = model.eval()(input_ids=ids).logits
        own.save(model, tiny.BASE_ID, folder / "new")
        fresh = AutoModelForCausalLM.from_pretrained(tiny.base(), dtype=torch.float32)
        with torch.no_grad():
            plain = fresh(input_ids=ids).logits
            again = PeftModel.from_pretrained(fresh, str(folder / "new")).eval()(input_ids=ids).logits
        yield same("logits after loading", again, trained, rel=1e-5)
        yield Comparison(
            "answers as the base", "no" if float((trained - plain).abs().max()) > 1e-3 else "yes", "no"
        )


def _halves(model: Any) -> dict[str, Tensor]:
    """All weights of the adapter's two halves and of the base, by name and not by what is trained."""
    import torch

    named: dict[str, list[Tensor]] = {"lora_A": [], "lora_B": [], "base": []}
    for name, weight in model.named_parameters():
        half = next((h for h in ("lora_A", "lora_B") if f".{h}." in name), "base")
        named[half].append(weight.detach().flatten().clone())
    return {half: torch.cat(found) for half, found in named.items()}


@oracle(
    "dpo",
    "kto",
    "online",
    "words",
    protects="reference log-probabilities that are not those of the champion, or change with the policy",
    reference="trl#1139",
)
def reference(subject: Callable[..., Any] | None) -> Iterator[Comparison]:
    """What is kept on disk, before and after the policy moved; the subject is called as `reference_logprobs`."""
    import contextlib

    import torch

    from training import tiny
    from training.oracles.items import objective
    from training.oracles.plain import logprobs
    from training.reference import reference_logprobs

    with quiet() as folder:
        sequences = [s for item in objective("dpo")[1] for s in item.sequences]
        model = tiny.policy(dropout=0.3)
        with torch.no_grad():
            champion = torch.cat([logprobs(model.eval(), s) for s in sequences])
        for when in ("computed", "read again after the policy moved"):
            model.train()  # what is kept must not depend on dropout
            found = (subject or reference_logprobs)(
                model, sequences, folder / "kept.arrow", batch_size=5, autocast=contextlib.nullcontext
            )
            yield same(when, torch.cat([torch.as_tensor(f) for f in found]), champion, rel=1e-5)
            tiny.move(model, 0.1)
