"""Preference rows beside what was served: their prompts and replies with tool calls, reasoning and names.

A preference row carries the role and content of its prompt's messages and the text of its replies. Its evidence names
the interactions that it rests on, and those have the rest. A prompt is taken from one of them where all roles and
contents agree, a reply where its text does; what somebody wrote as a correction is no reply that was served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc


class Context(NamedTuple):
    """One preference row as it was served."""

    prompt: list[dict[str, Any]]
    chosen: dict[str, Any]
    rejected: dict[str, Any] | None
    tools: list[dict[str, Any]] | None
    prompt_ids: list[int] | None
    """As logged; likewise below."""
    chosen_ids: list[int] | None
    rejected_ids: list[int] | None


@dataclass(frozen=True)
class Contexts:
    """What was served behind N preference rows, in their order.

    Columns, because most rows of a large dataset are never trained on; `row` decodes one.
    """

    prompts: pa.Array
    """(N,) JSON of messages."""
    chosen: pa.Array
    """(N,) JSON of a message."""
    rejected: pa.Array
    """(N,) likewise; null for unpaired rows."""
    tools: pa.Array
    """(N,) JSON of schemas; null where none were logged."""
    prompt_ids: pa.Array
    """(N,) lists of token ids as logged; null where they were not. Likewise below."""
    chosen_ids: pa.Array
    rejected_ids: pa.Array
    not_found: int
    """Rows whose own messages stand for the prompt, as no interaction with it is there."""

    def row(self, number: int) -> Context:
        """One row, decoded."""
        texts = [column[number].as_py() for column in (self.prompts, self.chosen, self.rejected, self.tools)]
        decoded: list[Any] = [None if text is None else orjson.loads(text) for text in texts]
        ids = [column[number].as_py() for column in (self.prompt_ids, self.chosen_ids, self.rejected_ids)]
        return Context(*decoded, *ids)


def contexts(preferences: pa.Table, served: pa.Table) -> Contexts:
    """Finds for each preference row what was served.

    Args:
        preferences: In `PREFERENCES`: prompt, chosen, rejected and evidence are read.
        served: In `SERVED`, each interaction once.
    """
    own = {name: preferences[name].combine_chunks() for name in ("prompt", "chosen", "rejected")}
    rows, places = _named(preferences["evidence"].combine_chunks(), served["interaction_id"].combine_chunks())
    wanted, numbers = np.unique(places, return_inverse=True)
    served = served.take(pa.array(wanted)).combine_chunks()  # only what is named has to be decoded
    prompts = pa.array([_joined(orjson.loads(text)) for text in served["prompt"].to_pylist()], pa.string())
    texts = pa.array(
        [orjson.loads(text)["content"] for text in served["completion"].to_pylist()], pa.string()
    )
    asked = _equal(_joined_column(own["prompt"]), prompts, rows, numbers)
    said = {side: _equal(own[side], texts, rows, numbers) for side in ("chosen", "rejected")}
    return Contexts(
        prompts=_filled(_taken(served, "prompt", asked), own["prompt"], lambda messages: messages),
        **{side: _filled(_taken(served, "completion", said[side]), own[side], _reply) for side in said},
        tools=_taken(served, "tools", asked),
        prompt_ids=_taken(served, "prompt_ids", asked),
        **{f"{side}_ids": _taken(served, "completion_ids", said[side]) for side in said},
        not_found=asked.null_count,
    )


def _named(evidence: pa.ListArray, ids: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Which rows name which interactions: numbers of rows, in order, and places among the ids."""
    places = pc.index_in(pc.list_flatten(evidence), value_set=ids)  # the rest are signals, or were not kept
    there = places.is_valid()
    return pc.list_parent_indices(evidence).filter(there).to_numpy(), places.filter(there).to_numpy()


def _equal(wanted: pa.Array, values: pa.Array, rows: np.ndarray, places: np.ndarray) -> pa.Array:
    """(N,) for each row the first place that it names whose value is the wanted one; null where there is none."""
    same = pc.equal(wanted.take(pa.array(rows)), values.take(pa.array(places)))
    hits = np.flatnonzero(pc.fill_null(same, False).to_numpy(zero_copy_only=False))
    with_one, first = np.unique(rows[hits], return_index=True)
    found = np.full(len(wanted), -1, np.int64)
    found[with_one] = places[hits][first]
    return pa.array(found, mask=found < 0)


_AFTER_ROLE, _AFTER_MESSAGE = "\x1f", "\x1e"


def _joined(messages: list[dict[str, Any]]) -> str:
    """Roles and contents as one text to compare."""
    return _AFTER_MESSAGE.join(_AFTER_ROLE.join((m["role"], m["content"])) for m in messages)


def _joined_column(prompts: pa.ListArray) -> pa.Array:
    """(N,) `_joined` of a column of lists of role and content."""
    flat = pc.list_flatten(prompts)
    one = pc.binary_join_element_wise(flat.field("role"), flat.field("content"), _AFTER_ROLE)
    counts = pc.fill_null(pc.list_value_length(prompts), 0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(offsets, one), _AFTER_MESSAGE)


def _taken(served: pa.Table, name: str, places: pa.Array) -> pa.Array:
    """A column of what was served, for each preference row; null where its place is."""
    column = served[name].combine_chunks()
    return column.take(places) if len(column) else pa.nulls(len(places), column.type)


def _filled(found: pa.Array, own: pa.Array, message: Callable[[Any], Any]) -> pa.Array:
    """The JSON that was found, and where there is none that of the row's own words."""
    lacking = np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False))
    values = [
        None if v is None else orjson.dumps(message(v)).decode()
        for v in own.take(pa.array(lacking)).to_pylist()
    ]
    return pc.replace_with_mask(found, found.is_null(), pa.array(values, pa.string()))


def _reply(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
