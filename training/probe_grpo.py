"""What a GRPO update costs, measured: three generations are sampled, paid and learned from, then thrown away.

Its rows are prompts, and how long the replies to them get is not known before they are sampled. So the time is that of
a generation as the champion answers now; where an update makes replies longer, it takes longer. The longest prompts
are among those that are tried, as memory is shortest there.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from training import grpo
from training.grpo_prompts import Chosen, Prompt
from training.hardware import Hardware
from training.probe import STEPS, Probe, Size, Step, Told, apart
from training.update import Champion, Data, Run


@dataclass(frozen=True)
class Sampled:
    """A GRPO update that can be tried."""

    config: grpo.Config
    champion: Champion
    data: Data
    """Rows of the tried prompts alone."""
    scorer: Path | None
    """Directory of the reward model; None where the settings need none."""
    heldout: Path | None
    """Directory of the one that judges, which an update watches; None where there is none."""
    cache: Path | None
    """Directory of embeddings."""
    seed: int
    hardware: Hardware = field(default_factory=Hardware)
    """Of the process that tries it."""


class _Enough(Exception):
    """The steps that were asked for are done."""


def prompts_of(config: grpo.Config, champion: Champion, data: Data, seed: int) -> Chosen:
    """The prompts that an update would answer.

    Raises:
        NotEnoughPreferences: fewer than `min_prompts`; the same as in training.
    """
    return grpo._chosen(config, grpo._tokenizer(champion), data, Run(Path(), seed))


def tried_prompts(config: grpo.Config, prompts: list[Prompt]) -> list[str]:
    """Keys of the prompts of three generations: the longest of one, and of the others the first as they come."""
    per_step = config.prompts_per_step
    longest = sorted(prompts, key=lambda prompt: (-len(prompt.ids), prompt.key))[:per_step]
    known = {prompt.key for prompt in longest}
    others = [prompt for prompt in prompts if prompt.key not in known]
    return [prompt.key for prompt in (*longest, *others[: (STEPS - 1) * per_step])]


def probe(work: Sampled, chosen: Chosen, on_step: Told | None = None) -> Probe:
    """Try three generations in a process of their own; nothing stays behind.

    Args:
        work: with all of its data.
        chosen: what `prompts_of` found.
        on_step: who watches.

    Raises:
        ProbeFailed: they did not run to their end.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = pa.array(tried_prompts(work.config, chosen.prompts), pa.string())
    preferences, served = (
        table.filter(pc.is_in(table["prompt_key"], value_set=keys))
        for table in (work.data.preferences, work.data.served)
    )
    cut = replace(work, data=replace(work.data, preferences=preferences, served=served))
    return apart(attempt, cut, on_step)


def size(config: grpo.Config, chosen: Chosen, probe: Probe) -> Size:
    """How much an update reads: prompts, and replies as long as the tried ones; each generation's once."""
    generations = config.steps // config.iterations
    timed = probe.steps[1:]
    tokens = round(sum(step.tokens for step in timed) / len(timed) * generations)
    lengths = [len(prompt.ids) for prompt in chosen.prompts]
    return Size(len(lengths), config.steps, tokens, sum(lengths), 0, max(lengths) + config.max_new_tokens)


def attempt(work: Sampled, folder: Path, started: float, tell: Told) -> Probe:
    """Sample, pay and learn from three generations in the process at hand."""
    from reward_models.scorer import load
    from training.probe_memory import before, memory
    from training.probe_steps import checkpoint, quiet

    quiet()
    found = before()
    scorer, heldout = (
        None if each is None else load(each, work.champion.base, work.cache)
        for each in (work.scorer, work.heldout)
    )
    clock = _Clock(work.config.iterations, tell)
    run = Run(folder, work.seed, heldout=heldout, on_step=clock.step, hardware=work.hardware)
    with contextlib.suppress(_Enough):
        grpo.train(_short(work.config), work.champion, work.data, scorer, run)
    on_disk, optimizer = checkpoint(folder)
    return Probe(
        clock.steps,
        max(0.0, clock.began - started - clock.steps[0].seconds),
        0.0,
        0.0,  # a checkpoint is written after each generation here, and is in its time
        on_disk,
        memory(found, 0, optimizer),
    )


def _short(config: grpo.Config) -> grpo.Config:
    """The same settings for three generations that teach nothing, whatever they are paid."""
    changes = {
        "steps": STEPS * config.iterations,
        "save_every_steps": config.iterations,
        "learning_rate": 1e-9,
        "min_prompts": 1,
        "dead_steps": STEPS + 1,
        "hacking": config.hacking.model_copy(update={"action": "off"}),
    }
    return config.model_copy(update=changes)


class _Clock:
    """When generations ended, and how many tokens each had; stops the run after three."""

    def __init__(self, iterations: int, tell: Told) -> None:
        self.iterations, self.tell = iterations, tell
        self.began = 0.0
        """When the first generation ended, seconds since 1970."""
        self._ends: list[float] = []
        self._tokens = [0.0] * STEPS
        self._since = 0.0

    def step(self, number: int, _total: int, metrics: dict[str, float]) -> None:
        """Called after every optimizer step."""
        now, rate = time.perf_counter(), metrics.get("tokens_per_s", 0.0)
        generation = (number - 1) // self.iterations
        if self._since:
            self._tokens[generation] += rate * (now - self._since)
        self._since = now
        if number % self.iterations:
            return
        self._ends.append(now)
        self.began = self.began or time.time()
        self.tell(generation + 1, STEPS, rate)
        if len(self._ends) == STEPS:
            raise _Enough

    @property
    def steps(self) -> tuple[Step, ...]:
        """The generations. The first one loads and warms up, which is in the start: it is given the others' mean."""
        timed = [
            Step(max(1, round(tokens)), later - earlier)
            for tokens, (earlier, later) in zip(self._tokens[1:], itertools.pairwise(self._ends), strict=True)
        ]
        tokens, seconds = (sum(values) / len(timed) for values in zip(*map(_parts, timed), strict=True))
        return (Step(round(tokens), seconds), *timed)


def _parts(step: Step) -> tuple[int, float]:
    return step.tokens, step.seconds
