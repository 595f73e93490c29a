"""Texts through a language model, with what they have in common read once.

Completions of one prompt begin alike. A causal model's keys and values of the beginning do not depend on what follows,
so they are computed once for all texts that share it, and each rest attends to them (Kwon et al. 2023, Efficient Memory
Management for Large Language Model Serving with PagedAttention, arXiv 2309.06180, section 4.4).
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_models.text_batches import Text, batches

if TYPE_CHECKING:
    import torch

CPU_TOKENS, GPU_TOKENS = 512, 4096
"""Most tokens of one pass, padding included. A CPU multiplies small matrices as fast as large ones, and their results
stay in its caches."""
_CPU_PASS, _GPU_PASS = 12, 512
"""What a pass costs beside its tokens, in tokens: texts are not padded by more than that to save one."""
_KEPT_TOKENS = 4096
"""Most prefix tokens whose keys and values are kept at a time."""


class Pass(NamedTuple):
    """What the model gave for some of the texts.

    Attributes:
        rows: B places in the sequence of texts.
        output: the model's output for them, (B, W, ...) where it has an entry for each token.
        is_rest: (B, W) which of these tokens belong to a text's rest.
    """

    rows: list[int]
    output: Any
    is_rest: torch.Tensor


def shares_prefixes(model: Any) -> bool:
    """Whether every layer is plain causal attention: only then a prefix can be computed without what follows."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    config, accepted = model.config, _parameters(model)
    causal = any(name.endswith("ForCausalLM") for name in getattr(config, "architectures", None) or ())
    if not causal or not getattr(config, "is_causal", True) or "position_ids" not in accepted:
        return False
    layers = getattr(DynamicCache(config=config), "layers", ())
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


def passes(model: Any, texts: Sequence[Text], *, pad: int, share: bool) -> Iterator[Pass]:
    """Every text through the model once, several in a pass, those of similar length together.

    Args:
        model: a transformers model in evaluation mode, or a PEFT model around one.
        texts: N of them; none is empty.
        pad: token id that fills what is shorter than its neighbours.
        share: whether prefixes may be computed apart (`shares_prefixes`).

    Yields:
        Passes that hold every text once, in no particular order.
    """
    again = Counter(text.prefix for text in texts) if share else Counter()
    alone = [i for i, text in enumerate(texts) if again[text.prefix] < 2 or not text.prefix]
    for rows in _batches([len(texts[i].prefix) + len(texts[i].rest) for i in alone], model.device):
        some = [alone[k] for k in rows]
        yield _whole(model, texts, some, pad)
    prefixes = sorted((p for p, times in again.items() if times > 1 and p), key=len)
    for chunk in _chunks(prefixes):
        place = {prefix: n for n, prefix in enumerate(chunk)}
        known = _keys_and_values(model, chunk, pad)
        members = [i for i, text in enumerate(texts) if text.prefix in place]
        for rows in _batches([len(texts[i].rest) for i in members], model.device):
            some = [members[k] for k in rows]
            yield _rests(model, texts, some, known, [place[texts[i].prefix] for i in some], pad)


def _whole(model: Any, texts: Sequence[Text], rows: list[int], pad: int) -> Pass:
    ids, real = _padded([texts[i].prefix + texts[i].rest for i in rows], pad, model.device)
    starts = _column([len(texts[i].prefix) for i in rows], model.device)
    return Pass(rows, _run(model, ids, real, {}), real & (_places(ids) >= starts))


def _rests(
    model: Any,
    texts: Sequence[Text],
    rows: list[int],
    known: Sequence[tuple[torch.Tensor, torch.Tensor]],
    of: list[int],
    pad: int,
) -> Pass:
    """Rests after their prefixes, whose padding, on the right of each, is a hole that nobody attends to."""
    import torch
    from transformers.cache_utils import DynamicCache

    ids, real = _padded([texts[i].rest for i in rows], pad, model.device)
    starts = _column([len(texts[i].prefix) for i in rows], model.device)
    width = int(starts.max())
    before = torch.arange(width, device=model.device)[None] < starts
    cache, which = DynamicCache(), torch.tensor(of, device=model.device)
    for layer, (keys, values) in enumerate(known):
        cache.update(keys[which, :, :width], values[which, :, :width], layer)
    more = {_cache_name(model): cache, "position_ids": _places(ids) + starts, "use_cache": True}
    return Pass(rows, _run(model, ids, torch.cat([before, real], dim=1), more), real)


def _keys_and_values(
    model: Any, prefixes: Sequence[tuple[int, ...]], pad: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each layer the keys and values (N, heads, longest, width of a head) of N prefixes."""
    import torch
    from torch.nn.functional import pad as widened
    from transformers.cache_utils import DynamicCache

    longest = max(map(len, prefixes))
    parts: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
    for rows in _batches([len(prefix) for prefix in prefixes], model.device):
        ids, real = _padded([prefixes[k] for k in rows], pad, model.device)
        cache: Any = DynamicCache()
        _run(model, ids, real, {_cache_name(model): cache, "use_cache": True})
        room = (0, 0, 0, longest - ids.shape[1])
        parts.append([(widened(one.keys, room), widened(one.values, room)) for one in cache.layers])
    # Prefixes come sorted by length, and batches keep the order.
    return [
        (torch.cat([keys for keys, _ in layer]), torch.cat([values for _, values in layer]))
        for layer in zip(*parts, strict=True)
    ]


def _run(model: Any, ids: torch.Tensor, mask: torch.Tensor, more: Mapping[str, Any]) -> Any:
    import torch

    if not more and "use_cache" in _parameters(model):
        more = {"use_cache": False}
    with torch.inference_mode():
        return model(input_ids=ids, attention_mask=mask.long(), **more)


def _parameters(model: Any) -> Mapping[str, inspect.Parameter]:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inspect.signature(inner.forward).parameters


def _cache_name(model: Any) -> str:
    """transformers 5.24 renamed the argument, and warns of the old name."""
    return "cache" if "cache" in _parameters(model) else "past_key_values"


def _padded(
    ids: Sequence[tuple[int, ...]], pad: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, W) token ids, filled on the right, and (B, W) which of them are real."""
    import torch

    width = max(map(len, ids))
    filled = torch.tensor([[*one, *[pad] * (width - len(one))] for one in ids], device=device)
    return filled, _places(filled) < _column([len(one) for one in ids], device)


def _places(ids: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.arange(ids.shape[1], device=ids.device)[None]


def _column(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    import torch

    return torch.tensor(lengths, device=device)[:, None]


def _chunks(prefixes: Sequence[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Prefixes, which come sorted by length, so many at a time that those kept stay below the bound."""
    start = 0
    for end in range(1, len(prefixes) + 1):
        if end == len(prefixes) or (end + 1 - start) * len(prefixes[end]) > _KEPT_TOKENS:
            yield list(prefixes[start:end])
            start = end


def _batches(lengths: Sequence[int], device: torch.device) -> list[list[int]]:
    on_cpu = device.type == "cpu"
    return batches(
        lengths, CPU_TOKENS if on_cpu else GPU_TOKENS, each_costs=_CPU_PASS if on_cpu else _GPU_PASS
    )
