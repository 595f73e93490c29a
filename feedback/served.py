"""What was served and what its user then did: one row for each reply, for methods that learn from single replies.

Which signals count is settled as for preferences (`feedback.groups`): what was taken back does not, and of what one
person said about one reply the newest does. The verdict is the sign of the sum over people; where as many liked the
reply as disliked it there is none. Silence is no verdict either.

A row rests on one reply alone, so consent and split are the reply's; a signal by somebody of another split is not
heard. Texts are cleaned of personal data as in preference rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from feedback.events import prompt_key
from feedback.groups import Reply, Signal, settle, signal_of
from feedback.hygiene.messages import Cleaner
from feedback.hygiene.pii import PiiConfig
from feedback.next_message import Said
from feedback.splits import Split, SplitConfig, row_split
from feedback.tables import times_of

SERVED: pa.Schema = pa.schema(
    [
        ("interaction_id", pa.string()),
        ("session_id", pa.string()),
        ("user_id", pa.string()),
        ("agent", pa.string()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("prompt", pa.string()),  # JSON: the messages as logged (tool calls, reasoning and names kept)
        ("completion", pa.string()),  # JSON: the reply, likewise
        (
            "tools",
            pa.string(),
        ),  # JSON: schemas of the tools that were on offer; null where they were not logged
        ("prompt_key", pa.string()),
        (
            "prompt_ids",
            pa.list_(pa.int32()),
        ),  # token ids as logged; null where they were not, or hold personal data
        ("completion_ids", pa.list_(pa.int32())),
        ("logprob", pa.float64()),  # nats, summed over the reply's tokens; null likewise
        ("tokens", pa.int64()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("propensity", pa.float64()),
        ("model_version", pa.string()),
        ("adapter_digest", pa.string()),
        ("verdict", pa.int8()),  # +1 thumb up or accept, -1 thumb down or reject, null: nothing was said
        ("copied", pa.bool_()),
        ("retried", pa.bool_()),
        ("edit", pa.string()),  # the corrected text; null where nobody corrected it
        ("next_message", pa.string()),  # what the user wrote next; null where that is not known
        ("comment", pa.string()),
        (
            "evidence",
            pa.list_(pa.string()),
        ),  # ids behind the columns from `verdict` on, sorted; an interaction's
        #                                       where `next_message` was read from the next interaction
        ("scrubbed", pa.list_(pa.string())),  # sorted kinds of personal data, one for each replacement
        ("kept_share", pa.float64()),  # share of rows like this one that were kept; 1 where nothing was cut
    ]
)

PROMPT_TOKEN_IDS, COMPLETION_TOKEN_IDS, TOOLS = "prompt_token_ids", "completion_token_ids", "tools"
"""Where an interaction's metadata holds the tokens that the model read and wrote, and the tools it was offered."""

_VERDICT = {"accept": 1, "reject": -1}
_CHUNK = 4096


@dataclass(frozen=True)
class Rules:
    """What may be in a row; the fields are those of `PreferConfig`."""

    actors: frozenset[str] = frozenset({"user", "rater"})
    """Whose signals count."""
    split: SplitConfig = field(default_factory=SplitConfig)
    """What is held out."""
    pii: PiiConfig = field(default_factory=PiiConfig)
    """Which personal data is replaced."""
    into: Split = "train"
    """The split that rows must fall in."""
    silenced: frozenset[str] = frozenset()
    """People who are not heard."""

    @property
    def use(self) -> str:
        """What an interaction must be free for."""
        return "train" if self.into == "train" else "evaluate"


def served_table(
    interactions: pa.Table,
    feedback: pa.Table,
    rules: Rules,
    *,
    said_next: Mapping[str, Said] | None = None,
    shares: Mapping[str, float] | None = None,
) -> tuple[pa.Table, dict[str, int]]:
    """One row for each interaction that may be used.

    Args:
        interactions: In `EVENTS` (at least id, digest, time and body), each id once.
        feedback: Likewise, each id once; signals about other interactions are passed over.
        rules: What may be in a row.
        said_next: By interaction id, what its user wrote next as the next interaction tells it; a signal of kind
            `next_message` comes first.
        shares: By interaction id, the column `kept_share`; 1 for all others.

    Returns:
        In `SERVED`, sorted by interaction id; and the number of interactions left out, by reason.
    """
    signals = _that_count(interactions, feedback, rules.actors)
    left_out: Counter[str] = Counter()
    tables = [SERVED.empty_table()]
    columns = interactions.select(["interaction_id", "event_time", "body"]).sort_by("interaction_id")
    for first in range(0, columns.num_rows, _CHUNK):  # bodies are large once they are Python objects
        chunk = columns.slice(first, _CHUNK)
        rows, clean = [], Cleaner(rules.pii)
        for time, body in zip(times_of(chunk["event_time"]), chunk["body"].to_pylist(), strict=True):
            reply = orjson.loads(body)
            key = prompt_key(reply["prompt"])
            if reason := _refused(reply, key, rules):
                left_out[reason] += 1
                continue
            name = reply["interaction_id"]
            heard = [s for s in signals.get(name, ()) if _is_heard(s, reply, key, rules)]
            said = _said(heard, reply, (said_next or {}).get(name), clean.texts())
            share = 1.0 if shares is None else shares.get(name, 1.0)
            rows.append(
                {
                    **_as_logged(reply, clean),
                    **said,
                    "event_time": time,
                    "prompt_key": key,
                    "kept_share": share,
                }
            )
        tables.append(pa.Table.from_pylist(rows, schema=SERVED))
    return pa.concat_tables(tables), dict(sorted(left_out.items()))


def _refused(reply: Mapping[str, Any], key: str, rules: Rules) -> str | None:
    if rules.use not in reply["uses"]:
        return f"consent_{rules.use}"
    drawn = row_split([reply.get("user_id")], key, rules.split)
    return None if drawn == rules.into else "another_split"


def _is_heard(signal: Signal, reply: Mapping[str, Any], key: str, rules: Rules) -> bool:
    """Whether a row with the words of both people would still fall in the split."""
    if signal.user in rules.silenced:
        return False
    return row_split([reply.get("user_id"), signal.user], key, rules.split) == rules.into


def _that_count(
    interactions: pa.Table, feedback: pa.Table, actors: Collection[str]
) -> dict[str, list[Signal]]:
    """By interaction id, the signals that count, oldest first."""
    known = interactions["interaction_id"].combine_chunks()
    feedback = feedback.filter(pc.is_in(feedback["interaction_id"], value_set=known))
    columns = feedback.select(["digest", "body"]).to_pydict()
    told = zip(columns["body"], columns["digest"], times_of(feedback["event_time"]), strict=True)
    signals = [signal_of(orjson.loads(body), digest, time) for body, digest, time in told]
    # All replies in one group: nothing but the prompts that votes compare depends on them, and no vote is read.
    about = interactions.select(["interaction_id", "digest"]).to_pydict()
    stubs = [
        Reply(name, digest, b"", "", time, None, None, "", frozenset(), None)
        for name, digest, time in zip(
            about["interaction_id"], about["digest"], times_of(interactions["event_time"]), strict=True
        )
    ]
    found: dict[str, list[Signal]] = defaultdict(list)
    for signal in settle("", stubs, signals, frozenset(actors)).signals:
        found[signal.reply_id].append(signal)
    return found


def _said(
    signals: Sequence[Signal], reply: Mapping[str, Any], following: Said | None, clean: Callable[[str], str]
) -> dict[str, Any]:
    """The columns from `verdict` to `evidence`."""
    of_kind: dict[str, list[Signal]] = defaultdict(list)
    for signal in signals:
        of_kind[signal.kind].append(signal)
    verdict, behind = _verdict([*of_kind["thumb"], *of_kind["accept"], *of_kind["reject"]])
    retries = [signal for signal in of_kind["retry"] if signal.user == reply.get("user_id")]
    evidence = {signal.id for signal in (*behind, *of_kind["copy"], *retries)}
    found: dict[str, str | None] = {}
    # Of what can be said again the newest counts, but what was written next is what was written first.
    for kind, place in (("edit", -1), ("comment", -1), ("next_message", 0)):
        written = [signal for signal in of_kind[kind] if signal.value["text"].strip()]
        found[kind] = clean(written[place].value["text"]) if written else None
        evidence |= {written[place].id} if written else set()
    if found["next_message"] is None and following is not None:
        found["next_message"] = clean(following.text)
        evidence.add(following.interaction_id)
    return {
        "verdict": verdict,
        "copied": bool(of_kind["copy"]),
        "retried": bool(retries),
        **found,
        "evidence": sorted(evidence),
    }


def _verdict(signals: Sequence[Signal]) -> tuple[int | None, list[Signal]]:
    """The sign of what people said on the whole, and the signals it rests on; None where they cancel out."""
    newest: dict[str, Signal] = {}
    for signal in sorted(signals, key=lambda signal: (signal.time, signal.digest)):
        # A thumb and an accept by one person are one opinion; people without an id are taken for as many people.
        newest[signal.id if signal.user is None else f"\0{signal.actor}\0{signal.user}"] = signal
    total = sum(s.value if s.kind == "thumb" else _VERDICT[s.kind] for s in newest.values())
    return (None, []) if total == 0 else ((total > 0) - (total < 0), list(newest.values()))


def _as_logged(reply: Mapping[str, Any], clean: Cleaner) -> dict[str, Any]:
    """The columns that the interaction alone decides."""
    about, sampling, model = (reply.get(name) or {} for name in ("metadata", "sampling", "model"))
    prompt, in_prompt = clean.messages(reply["prompt"])
    (completion,), in_completion = clean.messages([reply["completion"]])
    return {
        **{name: reply.get(name) for name in _COPIED},
        "prompt": orjson.dumps(prompt).decode(),
        "completion": orjson.dumps(completion).decode(),
        "tools": tool_schemas(about.get(TOOLS)),
        # Token ids spell out what was replaced in the text, and the log-probability is of what stood there.
        "logprob": None if in_prompt or in_completion else reply.get("logprob"),
        "prompt_ids": None if in_prompt else token_ids(about.get(PROMPT_TOKEN_IDS)),
        "completion_ids": None if in_completion else token_ids(about.get(COMPLETION_TOKEN_IDS)),
        "temperature": sampling.get("temperature"),
        "top_p": sampling.get("top_p"),
        "model_version": model.get("version"),
        "adapter_digest": model.get("adapter_digest"),
        "scrubbed": sorted([*in_prompt, *in_completion]),
    }


_COPIED = ("interaction_id", "session_id", "user_id", "agent", "tokens", "propensity")


def token_ids(value: Any) -> list[int] | None:
    """A list of token ids as it was logged; None where it is none."""
    if not isinstance(value, list) or not value:
        return None
    whole = all(type(item) is int and 0 <= item < 2**31 for item in value)
    return value if whole else None


def tool_schemas(value: Any) -> str | None:
    """The JSON of a list of objects that was logged as such or, to keep the order of their keys, as text."""
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    try:
        schemas = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    sound = isinstance(schemas, list) and schemas and all(isinstance(each, dict) for each in schemas)
    return text if sound else None
