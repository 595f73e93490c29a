"""Several methods in one update: every optimizer step holds rows of each, by share.

    L = sum over methods m of share_m * (mean loss of the step's rows of m)

What was learned before is held by replay: a share of each method's rows are those the champion has already learned
from. The distances to champion and base are bounded by `kl_budget` and `base_kl_budget` over all rows together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import Field, field_validator

from training import dpo, kto, online, words
from training.dpo import Config as DPOConfig
from training.errors import NotEnoughPreferences
from training.fit import fit
from training.kto import Config as KTOConfig
from training.online import Config as OnlineConfig
from training.result import RESULT, TrainResult, read_result
from training.settings import UpdateSettings
from training.update import Champion, Data, Need, Run
from training.words import Config as WordsConfig

if TYPE_CHECKING:
    from reward_models.scorer import Scorer
    from training.policy_trainer import Item, Objective, Sums, Terms

NEEDS: frozenset[Need] = frozenset({"preferences", "served"})
PARTS = ("dpo", "kto", "online", "words")
_NEW, _OLD = "new", "old"


class Config(UpdateSettings):
    """Settings of a mixed update; learning rate, epochs, limits and checkpoints are those given here."""

    shares: dict[str, float] = Field(default_factory=lambda: {"dpo": 0.5, "kto": 0.25, "words": 0.25})
    """Method to its share of the loss; they are brought to a sum of 1. A method without enough rows is left out, said
    so, and the others share what it had."""
    replay: float = Field(default=0.25, ge=0, lt=1)
    """Share of each method's rows in a step that the champion learned from before, where there are both."""
    dpo: DPOConfig = DPOConfig()
    """Loss and limits of pairs."""
    kto: KTOConfig = KTOConfig()
    """Loss and limits of single replies."""
    online: OnlineConfig = OnlineConfig()
    """Rewards and limits of live replies."""
    words: WordsConfig = WordsConfig()
    """Weights and limits of corrections and next messages."""
    batch_rows: int = Field(default=16, ge=1)
    """Rows per optimizer step; each method has at least one."""
    micro_batch_rows: int = Field(default=4, ge=1)
    """Rows per forward and backward pass."""

    @field_validator("shares")
    @classmethod
    def _shares(cls, shares: dict[str, float]) -> dict[str, float]:
        if unknown := sorted(set(shares) - set(PARTS)):
            raise ValueError(f"{', '.join(unknown)} cannot be mixed; {', '.join(PARTS)} can")
        if not shares or min(shares.values()) <= 0:
            raise ValueError("shares must name at least one method, each with a positive share")
        return shares


def train(
    config: Config,
    champion: Champion,
    data: Data,
    scorer: Scorer | None,
    run: Run,
) -> TrainResult:
    """Continue the champion's adapter by several methods at once; as safe to kill as DPO.

    Raises:
        NotEnoughPreferences: no method has enough rows.
        TrainingError: the loss or a weight is not finite, or the disk is full.
    """
    if (run.output / RESULT).is_file():
        return read_result(run.output / RESULT)
    mixed = prepared(config, champion, data, run.seed)
    rows = Counter(f"{item.part}_rows" for item in mixed.items)
    return fit(
        mixed.settings,
        champion,
        run,
        mixed.items,
        mixed.objective,
        per_step=1,
        micro_batch=config.micro_batch_rows,
        metrics={"rows": float(len(mixed.items)), **{name: float(n) for name, n in rows.items()}},
        left_out=mixed.left_out,
        check=mixed.check,
        steps=mixed.steps,
        data=data,
        scorer=scorer,
    )


class Prepared(NamedTuple):
    """A mixed update before anything is trained."""

    settings: Config
    """Those of its steps: they already hold `epochs` passes over the rows, and are gone through once."""
    items: list[Item]
    objective: Mixed
    steps: list[list[int]]
    """Places of the items of each optimizer step."""
    left_out: dict[str, int]
    check: Callable[[Sequence[Item]], dict[str, float]]
    """What is asked of the items once their references are known."""


def prepared(config: Config, champion: Champion, data: Data, seed: int) -> Prepared:
    """Find the rows of each method, share out the loss, and put the steps together.

    Raises:
        NotEnoughPreferences: no method has enough rows.
    """
    parts, left_out = _parts(config, champion, data, seed)
    shares = {name: config.shares[name] for name in parts}
    shares = {name: share / sum(shares.values()) for name, share in shares.items()}
    items = [item for name in parts for item in parts[name]]
    steps = put_together(items, shares, config, seed)
    once = config.model_copy(update={"epochs": 1.0})
    return Prepared(once, items, Mixed(config, shares), steps, left_out, partial(_check, config))


def _parts(
    config: Config, champion: Champion, data: Data, seed: int
) -> tuple[dict[str, list[Item]], dict[str, int]]:
    """The items of each method that has enough rows, and what was left out by method and reason.

    Raises:
        NotEnoughPreferences: none has.
    """
    parts: dict[str, list[Item]] = {}
    left_out: Counter[str] = Counter()
    problems: list[str] = []
    for name in sorted(config.shares):
        try:
            items, unused = _items(name, config, champion, data, seed)
        except NotEnoughPreferences as error:
            problems.append(f"{name}: {error.got}")
            left_out[f"{name}: too few rows"] += 1
            continue
        until = -math.inf if data.learned_until is None else data.learned_until.timestamp()
        parts[name] = [
            replace(
                item,
                part=name,
                values={**item.values, "old": float(item.values["time"] <= until)},
                inner=item.part,
            )
            for item in items
        ]
        left_out.update({f"{name}: {reason}": n for reason, n in unused.items()})
    if not parts:
        raise NotEnoughPreferences(
            "No method of the mix has enough rows.",
            got="; ".join(problems),
            allowed="enough rows for one of them ([train.mix.<method>] min_rows or min_pairs)",
            next_step="collect more feedback, then run again; `palate show dataset` lists what there is",
        )
    return parts, dict(left_out)


def _items(
    name: str, config: Config, champion: Champion, data: Data, seed: int
) -> tuple[list[Item], dict[str, int]]:
    shared = {field: getattr(config, field) for field in ("max_tokens", "overlong", "reasoning")}
    own = getattr(config, name).model_copy(update=shared)
    make: dict[str, Any] = {
        "dpo": dpo.pair_items,
        "kto": kto.reply_items,
        "online": online.reply_items,
        "words": words.word_items,
    }
    items, left_out, _ = make[name](own, champion, data, seed)
    return items, left_out


def put_together(
    items: Sequence[Item], shares: dict[str, float], config: Config, seed: int
) -> list[list[int]]:
    """Places of the items of each optimizer step.

    Every step has rows of every method by its share, and of them those of replay; each sort of rows is gone through in
    a seeded order, again and again. There are as many steps as would show `epochs` times all rows.
    """
    count = max(1, math.ceil(config.epochs * len(items) / config.batch_rows))
    streams: list[list[int]] = []
    for name, share in sorted(shares.items()):
        size = max(1, round(share * config.batch_rows))
        sorts = {
            kind: [
                i
                for i, item in enumerate(items)
                if item.part == name and (item.values["old"] > 0) == (kind == _OLD)
            ]
            for kind in (_NEW, _OLD)
        }
        old = round(config.replay * size) if all(sorts.values()) else (0 if sorts[_NEW] else size)
        for kind, n in ((_NEW, size - old), (_OLD, old)):
            streams.append(_stream(sorts[kind], n * count, np.random.default_rng([seed, len(streams)])))
    return [
        [i for stream in streams for i in stream[len(stream) // count * k : len(stream) // count * (k + 1)]]
        for k in range(count)
    ]


def _stream(places: list[int], length: int, dice: np.random.Generator) -> list[int]:
    """So many places, each once before any comes again."""
    found: list[int] = []
    while len(found) < length:
        found += [places[i] for i in dice.permutation(len(places))]
    return found[:length]


def _check(config: Config, items: Sequence[Item]) -> dict[str, float]:
    live = [item for item in items if item.part == "online"]
    return online.effective(config.online, live) if live else {}


@dataclass(frozen=True)
class Mixed:
    """The methods' losses, each a mean over its rows of the step, weighed by share."""

    config: Config
    shares: dict[str, float]

    def prepare(self, model: Any, items: Sequence[Item]) -> dict[str, tuple[Any, float]]:
        """For each method what it must know of the step, and the weight of one of its rows."""
        found = {}
        for name, own in self._by_part(items).items():
            # The trainer divides by all items of the step.
            weight = self.shares[name] * len(items) / len(own)
            found[name] = (self._objective(name).prepare(model, own), weight)
        return found

    def terms(self, model: Any, items: Sequence[Item], step: dict[str, tuple[Any, float]]) -> Terms:
        """Loss of each row, in the order of the items."""
        import torch

        from training.policy_trainer import Terms, added

        sums: Sums = {}
        losses: dict[int, Any] = {}
        logps: dict[int, Any] = {}
        for name, own in self._by_part(items).items():
            known, weight = step[name]
            found = self._objective(name).terms(model, [replace(i, part=i.inner) for i in own], known)
            places = [k for k, item in enumerate(items) if item.part == name]
            losses |= dict(zip(places, weight * found.losses, strict=True))
            logps |= dict(zip(places, found.logps, strict=True))
            sums = added(sums, {f"{name}/{metric}": value for metric, value in found.sums.items()})
            sums[f"{name}/loss"] = (float(found.losses.detach().sum()), float(len(own)))
        order = range(len(items))
        return Terms(torch.stack([losses[k] for k in order]), [logps[k] for k in order], sums)

    def _by_part(self, items: Sequence[Item]) -> dict[str, list[Item]]:
        return {name: own for name in self.shares if (own := [item for item in items if item.part == name])}

    def _objective(self, name: str) -> Objective:
        made: dict[str, Callable[[], Objective]] = {
            "dpo": lambda: dpo.Objective(self.config.dpo),
            "kto": lambda: kto.Objective(self.config.kto),
            "online": lambda: online.Objective(self.config.online),
            "words": lambda: words.Objective(self.config.words),
        }
        return made[name]()
