"""The same work in several shapes, for `streams_throughput.py`: JSON lines to validated, joined Parquet.

Each function takes the file of lines and an empty folder, leaves three Parquet outputs there (accepted rows with their
bodies, refused rows with their bytes and a reason, and the joined rows: every event once, feedback only where
its interaction is there, by prompt), and gives the number of rows of each. Everything heavy is imported by
`warm`, so that imports are timed apart.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from streams_events import NOW

Counts = dict[str, int]

_MODULES = {
    "palate": [
        "apache_beam", "great_expectations", "great_expectations.expectations", "deltalake", "pandas",
        "pipelines.ingest", "pipelines.ingest_transforms", "pipelines.build", "pipelines.build_transforms",
    ],
    "beam per element": ["apache_beam", "apache_beam.io.parquetio", "orjson", "pyarrow"],
    "polars": ["polars"],
    "duckdb": ["duckdb"],
}  # fmt: skip


def warm(shape: str) -> None:
    """Imports what a shape needs."""
    from pipelines.runner import import_beam

    if "apache_beam" in _MODULES[shape]:
        import_beam()
    for name in _MODULES[shape]:
        importlib.import_module(name)
    if shape == "palate":  # the processes it has beside this one import as well
        from concurrent.futures import wait

        from pipelines import processes

        wait(processes.start(processes.available()))


def palate(path: Path, folder: Path) -> Counts:
    """Ingest, then the joining half of the build, as a project runs them."""
    import apache_beam as beam
    import pyarrow.parquet as pq

    from pipelines import events_table
    from pipelines.build_transforms import Join, WriteJoined
    from pipelines.ingest import ingest
    from pipelines.runner import RunnerConfig, given, run_pipeline
    from pipelines.shards import bundled
    from pipelines.workspace import Layout

    summary = ingest(path, source="palate_jsonl", workspace=folder / "workspace", now=NOW)
    layout = Layout(folder / "workspace")
    found = events_table.files(events_table.open_table(layout))
    events = [file for file in found if file.kind != "dead_letter"]
    staging, joined = folder / "staging", folder / "joined"
    staging.mkdir()
    joined.mkdir()
    shards = max(1, min(64, summary.received // 20_000))
    processes = RunnerConfig().processes(summary.received)

    def construct(pipeline: Any) -> None:
        files = pipeline | given(bundled(events))
        files | Join(staging, shards, processes=processes) | beam.ParDo(WriteJoined(joined, processes))

    run_pipeline(construct)
    return {
        "accepted": summary.interactions + summary.feedback,
        "refused": sum(summary.dead_letters.values()),
        "joined": sum(pq.read_metadata(file).num_rows for file in joined.glob("*.parquet")),
    }


def per_element(path: Path, folder: Path) -> Counts:
    """The pipeline as Beam's own examples are written: one element per event, `CoGroupByKey` for the join."""
    import apache_beam as beam
    import pyarrow.parquet as pq
    from apache_beam.io.parquetio import WriteToParquet

    from pipelines.runner import run_pipeline

    def construct(pipeline: Any) -> None:
        lines = pipeline | beam.io.ReadFromText(str(path))
        read = lines | beam.FlatMap(_element).with_outputs("refused", main="accepted")
        once = (
            read.accepted
            | "ById" >> beam.Map(lambda row: ((row["kind"], row["event_id"]), row))
            | beam.GroupByKey()
            | "First" >> beam.Map(lambda pair: next(iter(pair[1])))
        )
        by_kind = {
            kind: once
            | f"Only {kind}" >> beam.Filter(lambda row, kind=kind: row["kind"] == kind)
            | f"Key {kind}" >> beam.Map(lambda row: (row["interaction_id"], row))
            for kind in ("interaction", "feedback")
        }
        joined = by_kind | beam.CoGroupByKey() | beam.FlatMap(_joined)
        for name, rows in (("accepted", read.accepted), ("refused", read.refused), ("joined", joined)):
            rows | f"Write {name}" >> WriteToParquet(str(folder / name), _schema(name), codec="zstd")

    run_pipeline(construct)
    return {
        name: sum(pq.read_metadata(file).num_rows for file in folder.glob(f"{name}-*"))
        for name in ("accepted", "refused", "joined")
    }


def _schema(name: str) -> Any:
    import pyarrow as pa

    if name == "refused":
        return pa.schema([("reason", pa.string()), ("raw", pa.string())])
    names = ["kind", "event_id", "interaction_id", "session_id", "user_id", "event_time", "body"]
    return pa.schema([(column, pa.string()) for column in [*names, "prompt"]])


def _element(line: str) -> Iterator[Any]:
    """One line as a row, or tagged as refused."""
    import apache_beam as beam
    import orjson

    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        yield beam.pvalue.TaggedOutput("refused", {"reason": "not_json", "raw": line})
        return
    reason = _fault(event)
    if reason:
        yield beam.pvalue.TaggedOutput("refused", {"reason": reason, "raw": line})
        return
    kind = event["type"]
    row = {name: event.get(name) for name in ("interaction_id", "session_id", "user_id", "event_time")}
    prompt = None
    if kind == "interaction":
        prompt = next((m["content"] for m in event["prompt"] if m["role"] == "user"), "").casefold()
    yield row | {"kind": kind, "event_id": event[f"{kind}_id"], "body": line, "prompt": prompt}


def _fault(event: dict[str, Any]) -> str | None:
    """Required fields, the type of every field of the format, and ranges."""
    from datetime import datetime

    kind = event.get("type")
    required = [
        "event_time",
        "interaction_id",
        *(["prompt", "completion"] if kind == "interaction" else ["kind"]),
    ]
    if kind not in ("interaction", "feedback") or any(event.get(name) is None for name in required):
        return "missing_field"
    try:
        datetime.fromisoformat(event["event_time"])
    except ValueError:
        return "bad_time"
    for name in _IDS:
        value = event.get(name)
        if value is not None and not (isinstance(value, str) and 0 < len(value) <= 256):
            return "bad_value"
    good = _good_interaction(event) if kind == "interaction" else _good_feedback(event)
    return None if good else "bad_value"


_IDS = ("interaction_id", "feedback_id", "session_id", "user_id", "parent_id", "agent", "retracts")
_KINDS = (
    "thumb", "rating", "vote", "edit", "retry", "copy", "accept", "reject", "share", "next_message", "comment",
    "outcome",
)  # fmt: skip
_ROLES = ("system", "user", "assistant", "tool")


def _good_interaction(event: dict[str, Any]) -> bool:
    model, sampling = event.get("model") or {}, event.get("sampling") or {}
    messages = [*event["prompt"], event["completion"]]
    return (
        bool(event["prompt"])
        and all(m.get("role") in _ROLES and isinstance(m.get("content"), str) for m in messages)
        and isinstance(model.get("name", ""), str)
        and isinstance(model.get("version") or "", str)
        and sampling.get("temperature", 0) >= 0
        and 0 < sampling.get("top_p", 1) <= 1
        and isinstance(sampling.get("seed", 0), int)
        and isinstance(event.get("logprob", 0), int | float)
        and event.get("tokens", 0) >= 0
        and event.get("latency_ms", 0) >= 0
        and 0 < event.get("propensity", 1) <= 1
        and all(use in ("train", "evaluate") for use in event.get("uses", ()))
    )


def _good_feedback(event: dict[str, Any]) -> bool:
    return (
        event["kind"] in _KINDS
        and event.get("actor", "user") in ("user", "rater", "judge", "code")
        and (event["kind"] != "thumb" or event.get("value") in (1, -1))
    )


def _joined(group: tuple[str, dict[str, Iterable[Any]]]) -> Iterator[dict[str, Any]]:
    replies = list(group[1]["interaction"])
    if replies:
        yield from replies
        for signal in group[1]["feedback"]:
            yield signal | {"prompt": replies[0]["prompt"]}


def polars(path: Path, folder: Path) -> Counts:
    """Plain polars. A bad line fails `json_decode` for all, so what is JSON is asked first."""
    import polars as pl

    message = pl.Struct({"role": pl.String, "content": pl.String, "name": pl.String, "reasoning": pl.String})
    texts = [*_IDS, "type", "event_time", "kind", "actor", "arm"]
    numbers = {"value": pl.Int64, "tokens": pl.Int64, "schema_version": pl.Int64} | dict.fromkeys(
        ["propensity", "logprob", "latency_ms"], pl.Float64
    )
    shape = pl.Struct(
        dict.fromkeys(texts, pl.String)
        | numbers
        | {
            "prompt": pl.List(message),
            "completion": message,
            "model": pl.Struct(dict.fromkeys(["name", "version", "adapter_digest"], pl.String)),
            "sampling": pl.Struct({"temperature": pl.Float64, "top_p": pl.Float64, "seed": pl.Int64}),
            "uses": pl.List(pl.String),
        }
    )
    raw = pl.read_csv(path, separator="\x01", quote_char=None, has_header=False, schema={"raw": pl.String})
    known = raw["raw"].str.json_path_match("$.type").is_in(["interaction", "feedback"]).fill_null(False)
    read = raw.filter(known).with_columns(pl.col("raw").str.json_decode(shape).alias("e")).unnest("e")
    said = pl.col("type") == "interaction"
    time = pl.col("event_time").str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", strict=False, time_zone="UTC")
    user = pl.col("prompt").list.eval(
        pl.element().filter(pl.element().struct.field("role") == "user").struct.field("content")
    )
    sampling, roles = pl.col("sampling").struct, pl.col("prompt").list.eval(pl.element().struct.field("role"))
    bad = pl.any_horizontal(
        *(~pl.col(name).str.len_chars().is_between(1, 256) for name in _IDS),
        sampling.field("temperature") < 0,
        ~sampling.field("top_p").is_between(0, 1, closed="right"),
        pl.col("tokens") < 0,
        pl.col("latency_ms") < 0,
        ~pl.col("propensity").is_between(0, 1, closed="right"),
        roles.list.eval(~pl.element().is_in(_ROLES)).list.any(),
        ~pl.col("completion").struct.field("role").is_in(_ROLES),
        pl.col("uses").list.eval(~pl.element().is_in(["train", "evaluate"])).list.any(),
        ~pl.col("actor").is_in(["user", "rater", "judge", "code"]),
        ~pl.col("kind").is_in(_KINDS),
        (pl.col("kind") == "thumb") & ~pl.col("value").is_in([1, -1]),
    ).fill_null(False)
    read = read.with_columns(
        event_time=time,
        event_id=pl.when(said).then("interaction_id").otherwise("feedback_id"),
        prompt=user.list.first().str.to_lowercase(),
        reason=pl.when(time.is_null() | pl.col("interaction_id").is_null())
        .then(pl.lit("missing_field"))
        .when(said & (pl.col("completion").is_null() | (pl.col("prompt").list.len().fill_null(0) == 0)))
        .then(pl.lit("missing_field"))
        .when(bad)
        .then(pl.lit("bad_value")),
    )
    kept = ["type", "event_id", "interaction_id", "session_id", "user_id", "event_time", "prompt", "raw"]
    accepted = read.filter(pl.col("reason").is_null()).select(kept)
    refused = pl.concat(
        [
            raw.filter(~known).select(pl.lit("not_json").alias("reason"), "raw"),
            read.filter(pl.col("reason").is_not_null()).select("reason", "raw"),
        ]
    )
    once = accepted.unique(["type", "event_id"], keep="first")
    replies = once.filter(said)
    prompts = replies.select("interaction_id", "prompt")
    signals = once.filter(~said).drop("prompt").join(prompts, on="interaction_id", how="inner")
    joined = pl.concat([replies, signals.select(kept)]).sort("prompt", "type", "event_id")
    for name, table in (("accepted", accepted.drop("prompt")), ("refused", refused), ("joined", joined)):
        table.write_parquet(folder / f"{name}.parquet", compression="zstd", compression_level=1)
    return {"accepted": accepted.height, "refused": refused.height, "joined": joined.height}


def duckdb(path: Path, folder: Path) -> Counts:
    """Plain DuckDB."""
    import duckdb as db

    message = dict.fromkeys(["role", "content", "name", "reasoning"], "VARCHAR")
    structure = json.dumps(
        dict.fromkeys([*_IDS, "type", "event_time", "kind", "actor", "arm"], "VARCHAR")
        | dict.fromkeys(["value", "tokens", "schema_version"], "BIGINT")
        | dict.fromkeys(["propensity", "logprob", "latency_ms"], "DOUBLE")
        | {
            "prompt": [message],
            "completion": message,
            "model": dict.fromkeys(["name", "version", "adapter_digest"], "VARCHAR"),
            "sampling": {"temperature": "DOUBLE", "top_p": "DOUBLE", "seed": "BIGINT"},
            "uses": ["VARCHAR"],
        }
    )
    long = " OR ".join(f"NOT (len(f.{name}) BETWEEN 1 AND 256)" for name in _IDS)
    con = db.connect()
    con.execute("SET preserve_insertion_order = false")
    con.execute(
        f"""
        CREATE TEMP TABLE read AS
        WITH lines AS (
            SELECT raw, json_valid(raw) AS ok FROM read_csv('{path}', columns = {{'raw': 'VARCHAR'}},
                delim = '\x01', quote = '', escape = '', header = false, auto_detect = false)
        ), fields AS (
            SELECT raw, ok, CASE WHEN ok THEN from_json(raw, '{structure}') END AS f FROM lines
        ), typed AS (
            SELECT raw, ok, f, f.type AS type,
                CASE WHEN f.type = 'interaction' THEN f.interaction_id ELSE f.feedback_id END AS event_id,
                f.interaction_id AS interaction_id, f.session_id AS session_id, f.user_id AS user_id,
                TRY_CAST(f.event_time AS TIMESTAMPTZ) AS event_time,
                lower(list_filter(f.prompt, lambda m: m.role = 'user')[1].content) AS prompt FROM fields
        )
        SELECT raw, type, event_id, interaction_id, session_id, user_id, event_time, prompt, CASE
            WHEN NOT ok THEN 'not_json'
            WHEN type IS NULL OR type NOT IN ('interaction', 'feedback') THEN 'unknown_type'
            WHEN event_id IS NULL OR interaction_id IS NULL OR event_time IS NULL THEN 'missing_field'
            WHEN type = 'interaction' AND (f.completion IS NULL OR coalesce(len(f.prompt), 0) = 0) THEN 'missing_field'
            WHEN {long} OR f.sampling.temperature < 0 OR NOT (f.sampling.top_p > 0 AND f.sampling.top_p <= 1)
                OR f.tokens < 0 OR f.latency_ms < 0 OR NOT (f.propensity > 0 AND f.propensity <= 1)
                OR len(list_filter(f.prompt, lambda m: m.role NOT IN {_ROLES})) > 0
                OR f.completion.role NOT IN {_ROLES}
                OR len(list_filter(f.uses, lambda u: u NOT IN ('train', 'evaluate'))) > 0
                OR f.actor NOT IN ('user', 'rater', 'judge', 'code') OR f.kind NOT IN {_KINDS}
                OR (f.kind = 'thumb' AND coalesce(f.value, 0) NOT IN (1, -1)) THEN 'bad_value'
        END AS reason FROM typed
        """
    )
    kept = "type, event_id, interaction_id, session_id, user_id, event_time"
    queries = {
        "accepted": f"SELECT {kept}, raw FROM read WHERE reason IS NULL",
        "refused": "SELECT reason, raw FROM read WHERE reason IS NOT NULL",
        "joined": f"""
            WITH once AS (SELECT DISTINCT ON (type, event_id) {kept}, prompt, raw FROM read WHERE reason IS NULL),
            replies AS (SELECT * FROM once WHERE type = 'interaction'),
            signals AS (SELECT f.* REPLACE (r.prompt AS prompt) FROM once f JOIN replies r USING (interaction_id)
                WHERE f.type = 'feedback')
            SELECT * FROM replies UNION ALL BY NAME SELECT * FROM signals ORDER BY prompt, type, event_id
        """,
    }
    for name, query in queries.items():
        file = folder / f"{name}.parquet"
        con.execute(f"COPY ({query}) TO '{file}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)")
    counts = {
        name: con.execute(f"SELECT count(*) FROM '{folder}/{name}.parquet'").fetchone() for name in queries
    }
    return {name: int(found[0]) for name, found in counts.items() if found}


SHAPES: dict[str, Callable[[Path, Path], Counts]] = {
    "palate": palate,
    "beam per element": per_element,
    "polars": polars,
    "duckdb": duckdb,
}
