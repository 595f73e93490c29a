"""The Beam half of a large build: group and judge over shards, with only file names in the shuffle.

Events are spilled as Arrow files by range of their group's key, so that everything said about one prompt meets and
the shards, one after the other, are in the order of a segment. An event's content decides its group, so copies meet
there too; only where different events came under one id, all of that id meet first, to find the one that stands.
What is shuffled is `(shard, name)`: five times faster than shuffling rows, and the runner's memory stays small. The
one thing every shard needs to know of all others, the prompt key of each interaction, is a side input of file names
too. What is done with a shard stands in `shards`; as it is given names and gives names, it may as well run in a
process beside this one.

`Join` is the first half alone: every event once, beside its prompt. `JoinAndPrefer` is all of it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from feedback.preferences import PreferConfig
from feedback.tables import PREFERENCES

from . import shards
from .events_table import EventFile
from .groups_store.write import DECIDED, PROMPTS, Part
from .processes import Ahead
from .runner import RunnerConfig, given
from .shards import Bundle, bundled, read_arrow

KEYS = "keys"
FEEDBACK = "feedback"
CONFLICTING = "conflicting"

Claim = dict[str, Any]
"""Where a shard's result lies: `shard`, and the paths of the tables of a `Part`."""


class OnShards(beam.DoFn):
    """A stage whose elements are worked by a function of `shards`, in processes beside this one if there are any.

    Args:
        processes: How many; 0 works every element in place.
    """

    def __init__(self, processes: int):
        self.processes = processes

    def start_bundle(self) -> None:
        """Nothing is held back from one bundle to the next."""
        self.ahead = Ahead(self.processes, ahead=2 * self.processes)

    def finish_bundle(self) -> Iterator[Any]:
        """What was held back."""
        for key, (result,) in self.ahead.rest():
            for output in self.outputs((key, result)):
                if isinstance(output, beam.pvalue.TaggedOutput):
                    yield beam.pvalue.TaggedOutput(output.tag, _windowed(output.value))
                else:
                    yield _windowed(output)

    def work(self, key: Any, function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        """Outputs of this or of earlier elements."""
        for done, (result,) in self.ahead.add(key, [(function, arguments)]):
            yield from self.outputs((done, result))

    def outputs(self, done: tuple[Any, Any]) -> Iterator[Any]:
        """What a key and its result become in the pipeline; the result alone unless said otherwise."""
        yield done[1]


def _windowed(value: Any) -> WindowedValue:
    return GlobalWindows.windowed_value(value)


class Spills(OnShards):
    """A stage that divides what it makes into `count` shards, as files in `staging`."""

    def __init__(self, staging: Path, count: int, processes: int):
        super().__init__(processes)
        self.staging, self.count = staging, count


class SpillIds(Spills):
    """Files of the events table → `((kind, shard), name)` of their ids."""

    def process(self, element: Bundle) -> Iterator[Any]:
        """Two columns only."""
        yield from self.work(element[0].kind, shards.spill_ids, element, self.staging, self.count)

    def outputs(self, done: tuple[Any, Any]) -> Iterator[Any]:
        """Each part."""
        kind, spilled = done
        for shard, name in spilled:
            yield (kind, shard), name


class FindConflicts(OnShards):
    """All ids of a shard → `(kind, id)` of those that stand for different events."""

    def process(self, element: tuple[tuple[str, int], Iterable[str]]) -> Iterator[Any]:
        """Mostly nothing."""
        (kind, _), names = element
        yield from self.work(kind, shards.find_conflicts, list(names))

    def outputs(self, done: tuple[Any, Any]) -> Iterator[Any]:
        """Each id."""
        kind, ids = done
        for name in ids:
            yield kind, name


class Route(Spills):
    """Files of the events table → their interactions by group; feedback and what conflicts go on, tagged."""

    def process(self, element: Bundle, conflicts: list[tuple[str, str]]) -> Iterator[Any]:
        """`conflicts` are kind and id of what must be settled by id first."""
        ids = sorted(name for kind, name in conflicts if kind == element[0].kind)
        yield from self.work(element[0].kind, shards.route, element, ids, self.staging, self.count)

    def outputs(self, done: tuple[Any, Any]) -> Iterator[Any]:
        """Names by group; tagged: of prompt keys, of feedback, and by id."""
        kind, routed = done
        yield from routed.grouped
        for name in routed.keys:
            yield beam.pvalue.TaggedOutput(KEYS, name)
        if routed.feedback:
            yield beam.pvalue.TaggedOutput(FEEDBACK, routed.feedback)
        for shard, name in routed.by_id:
            yield beam.pvalue.TaggedOutput(CONFLICTING, ((kind, shard), name))


class GroupReplies(Spills):
    """All rows of ids that conflict → interactions by group; feedback goes on, it waits for the prompts of all."""

    def process(self, element: tuple[tuple[str, int], Iterable[str]]) -> Iterator[Any]:
        """Yields `(shard, path)` and, tagged, the paths of prompt keys and of feedback."""
        (kind, _), paths = element
        if kind == "feedback":
            yield beam.pvalue.TaggedOutput(FEEDBACK, list(paths))
        else:
            yield from self.work(None, shards.group_replies, list(paths), self.staging, self.count)

    def outputs(self, done: tuple[Any, Any]) -> Iterator[Any]:
        """Keys and parts."""
        keys, spilled = done[1]
        yield beam.pvalue.TaggedOutput(KEYS, keys)
        yield from spilled


class GroupFeedback(Spills):
    """Feedback → feedback by group: beside its prompt, or where it waits."""

    def process(self, element: list[str], keys: list[str]) -> Iterator[Any]:
        """`keys` are the paths of the prompt keys of all interactions."""
        yield from self.work(None, shards.group_signals, element, list(keys), self.staging, self.count)

    def outputs(self, done: tuple[Any, Any]) -> Iterator[Any]:
        """Each part."""
        yield from done[1]


class Decide(OnShards):
    """All events of some groups → the claim of a part of a segment."""

    def __init__(self, staging: Path, config: PreferConfig, processes: int):
        super().__init__(processes)
        # As JSON: a configuration is checked again where it is used, and always pickles.
        self.staging, self.config_json = staging, config.model_dump_json()

    def process(self, element: tuple[int, Iterable[str]]) -> Iterator[Any]:
        """Pure work of `grouping.decide` on one shard."""
        shard, paths = element
        yield from self.work(shard, shards.decide_shard, list(paths), self.config_json, self.staging)

    def outputs(self, done: tuple[Any, Any]) -> Iterator[Any]:
        """The claim."""
        yield {"shard": done[0], **done[1]}


class WriteJoined(OnShards):
    """All events of some groups → the path of a Parquet file in which they are ordered by prompt."""

    def __init__(self, folder: Path, processes: int = 0):
        super().__init__(processes)
        self.folder = folder

    def process(self, element: tuple[int, Iterable[str]]) -> Iterator[Any]:
        """Only what stands beside a prompt; copies and feedback that waits are left out."""
        shard, paths = element
        yield from self.work(
            shard, shards.write_joined, list(paths), self.folder / f"joined-{shard:05d}.parquet"
        )


class LeaveClaim(beam.DoFn):
    """Writes down where a result lies, where the driver finds it."""

    def __init__(self, folder: Path):
        self.folder = folder

    def process(self, element: Claim) -> None:
        """One small file per result."""
        (self.folder / f"{uuid.uuid4().hex}.json").write_text(json.dumps(element))


class Join(beam.PTransform):
    """Bundles of files of the events table → `(shard, paths)`: every event once, with the group it is in.

    Delivery: as often as the input names a row; copies are told apart by id and content, so a repeated
    attempt changes nothing. Late events need no care: there are no windows, a build joins what is there.

    Args:
        staging: an existing folder, on storage that all workers share.
        count: number of shards the work is divided into.
        processes: that work beside this one; 0 for none.
    """

    def __init__(self, staging: Path, count: int, *, processes: int = 0):
        super().__init__()
        self.given = (staging, count, processes)

    def expand(self, files: Any) -> Any:
        """What conflicts by id, then all by group."""
        ids = files | "SpillIds" >> beam.ParDo(SpillIds(*self.given)) | "ById" >> beam.GroupByKey()
        conflicts = beam.pvalue.AsList(ids | "FindConflicts" >> beam.ParDo(FindConflicts(self.given[2])))
        routed = files | "Route" >> beam.ParDo(Route(*self.given), conflicts).with_outputs(
            KEYS, FEEDBACK, CONFLICTING, main="grouped"
        )
        settled = (
            routed[CONFLICTING]
            | "ConflictsById" >> beam.GroupByKey()
            | "GroupReplies"
            >> beam.ParDo(GroupReplies(*self.given)).with_outputs(KEYS, FEEDBACK, main="grouped")
        )
        keys = beam.pvalue.AsList((routed[KEYS], settled[KEYS]) | "Keys" >> beam.Flatten())
        feedback = (routed[FEEDBACK], settled[FEEDBACK]) | "Feedback" >> beam.Flatten()
        signals = feedback | "GroupFeedback" >> beam.ParDo(GroupFeedback(*self.given), keys)
        parts = (routed["grouped"], settled["grouped"], signals) | "Grouped" >> beam.Flatten()
        return parts | "ByGroup" >> beam.GroupByKey()


class JoinAndPrefer(beam.PTransform):
    """Bundles of files of the events table → claims: the parts of a segment, each with its events, rows and fates.

    Args:
        staging: an existing folder, on storage that all workers share.
        count: number of shards the work is divided into; has no influence on what is made.
        config: what counts as a preference.
        processes: that work beside this one; 0 for none.
    """

    def __init__(self, staging: Path, count: int, config: PreferConfig, *, processes: int = 0):
        super().__init__()
        self.staging, self.count, self.config, self.processes = staging, count, config, processes

    def expand(self, files: Any) -> Any:
        """`Join`, then the rules."""
        joined = files | "Join" >> Join(self.staging, self.count, processes=self.processes)
        return joined | "Decide" >> beam.ParDo(Decide(self.staging, self.config, self.processes))


def construct(
    pipeline: Any,
    files: list[EventFile],
    staging: Path,
    claims: Path,
    count: int,
    config: PreferConfig,
    runner: RunnerConfig,
    processes: int,
) -> None:
    """Adds the whole build to a pipeline; results are the claims it leaves."""
    prefer = JoinAndPrefer(staging, count, config, processes=processes)
    made = pipeline | "Files" >> given(bundled(files), runner) | prefer
    made | "Claim" >> beam.ParDo(LeaveClaim(claims))


def read_claims(folder: Path) -> list[Claim]:
    """The claims that were left, in the order of their shards."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(found, key=lambda claim: claim["shard"])


def read_part(claim: Claim) -> Part:
    """The tables that a claim stands for."""
    return Part(
        read_arrow([claim["events"]], DECIDED),
        read_arrow([claim["rows"]], PREFERENCES),
        read_arrow([claim["prompts"]], PROMPTS),
    )
