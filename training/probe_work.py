"""What an update by a method would do, without doing it: its items, its loss, and how its steps are cut.

Each method is asked for the same things, by the same functions, that its `train` hands to `training.fit`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from training.errors import TrainingError
from training.probe import Work
from training.update import Champion, Data

Planned = tuple[Work, dict[str, int]]
"""The work, and the rows that it leaves out, by reason."""


def work_of(method: str, config: Any, champion: Champion, data: Data, seed: int) -> Planned:
    """The update by a method that learns from items.

    Args:
        method: one of `ITEMS`.
        config: its own `Config`.
        champion: where it starts.
        data: what it learns from.
        seed: of its choices.

    Raises:
        NotEnoughPreferences: too few usable rows; the same as in training.
        TrainingError: the method does not learn from items.
    """
    if method not in ITEMS:
        raise TrainingError(
            "This method does not learn from rows that are there before.",
            got=method,
            allowed=", ".join(ITEMS),
        )
    return ITEMS[method](config, champion, data, seed)


def _dpo(config: Any, champion: Champion, data: Data, seed: int) -> Planned:
    from training import dpo

    items, left_out, _ = dpo.pair_items(config, champion, data, seed)
    objective = dpo.Objective(config)
    return (
        Work(config, champion, items, objective, config.batch_pairs, config.micro_batch_pairs, seed),
        left_out,
    )


def _kto(config: Any, champion: Champion, data: Data, seed: int) -> Planned:
    from training import kto

    items, left_out, _ = kto.reply_items(config, champion, data, seed)
    objective = kto.Objective(config)
    return Work(
        config, champion, items, objective, config.batch_rows, config.micro_batch_rows, seed
    ), left_out


def _online(config: Any, champion: Champion, data: Data, seed: int) -> Planned:
    from training import online

    items, left_out, _ = online.reply_items(config, champion, data, seed)
    work = Work(
        config,
        champion,
        items,
        online.Objective(config),
        config.batch_rows,
        config.micro_batch_rows,
        seed,
        check=partial(online.effective, config),
    )
    return work, left_out


def _words(config: Any, champion: Champion, data: Data, seed: int) -> Planned:
    from training import words

    items, left_out, _ = words.word_items(config, champion, data, seed)
    objective = words.Objective(config)
    return Work(
        config, champion, items, objective, config.batch_rows, config.micro_batch_rows, seed
    ), left_out


def _mix(config: Any, champion: Champion, data: Data, seed: int) -> Planned:
    from training import mix

    mixed = mix.prepared(config, champion, data, seed)
    work = Work(
        mixed.settings,
        champion,
        mixed.items,
        mixed.objective,
        1,
        config.micro_batch_rows,
        seed,
        steps=mixed.steps,
        check=mixed.check,
    )
    return work, mixed.left_out


ITEMS: dict[str, Callable[[Any, Champion, Data, int], Planned]] = {
    "dpo": _dpo,
    "kto": _kto,
    "mix": _mix,
    "online": _online,
    "words": _words,
}
"""The methods that learn from items, each with what finds its own."""
