"""Great Expectations on whole tables: what must hold of preferences and fates before training.

The events' suite runs on every batch at ingest (`pipelines.expectations`) and refuses rows. These two look at a
built dataset and refuse nothing: an expectation that does not hold stops the loop. Most of them state what the code
promises anyway, so that a fault in it, or a table changed by hand, is noticed before it is learned.

Great Expectations sees a small frame: lengths instead of texts, flags instead of comparisons.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from feedback.splits import SplitConfig
from feedback.tables import Fate

from .ledger import Ledger
from .quality import Check, FatesQuality, PreferencesQuality, TableReport, shown

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_SPLITS = ["train", "evaluation", "test"]
# An event that ended in one of these says why.
_REASONED = ("dead_letter", "no_preference", "waiting", "withheld")


@dataclass(frozen=True)
class _Expected:
    """An expectation: its name, what it means, what is allowed, and Great Expectations' words for it."""

    name: str
    meaning: str
    allowed: str
    kind: str
    arguments: dict[str, Any]


def _each(
    name: str, meaning: str, column: str, low: float | None, high: float | None, allowed: str
) -> _Expected:
    """Every row's value lies in [low, high]."""
    arguments = {"column": column, "min_value": low, "max_value": high}
    return _Expected(name, meaning, allowed, "ExpectColumnValuesToBeBetween", arguments)


def _true(name: str, meaning: str, column: str) -> _Expected:
    """A flag is set in every row."""
    return _Expected(
        name, meaning, "every row", "ExpectColumnValuesToBeInSet", {"column": column, "value_set": [1]}
    )


def _among(name: str, meaning: str, column: str, values: Sequence[str]) -> _Expected:
    arguments = {"column": column, "value_set": list(values)}
    return _Expected(name, meaning, ", ".join(values), "ExpectColumnValuesToBeInSet", arguments)


def _unique(name: str, meaning: str, column: str) -> _Expected:
    return _Expected(name, meaning, "each once", "ExpectColumnValuesToBeUnique", {"column": column})


def _share(name: str, meaning: str, column: str, high: float) -> _Expected:
    """The mean of a flag is at most so large."""
    arguments = {"column": column, "min_value": None, "max_value": high}
    return _Expected(name, meaning, f"at most {high:.1%}", "ExpectColumnMeanToBeBetween", arguments)


def _sum(name: str, meaning: str, column: str, low: int) -> _Expected:
    arguments = {"column": column, "min_value": low, "max_value": None}
    return _Expected(name, meaning, f"at least {low}", "ExpectColumnSumToBeBetween", arguments)


def _held_out(split: SplitConfig) -> list[_Expected]:
    """Nothing that is held out is in two splits."""
    found = []
    if split.test_prompts + split.evaluation_prompts > 0:
        found.append(
            _each("prompt_in_one_split", "a prompt is in one split only", "prompt_splits", 1, 1, "1 split")
        )
    if split.test_users + split.evaluation_users > 0:
        found.append(
            _each("user_in_one_split", "a user is in one split only", "user_splits", 0, 1, "1 split")
        )
    return found


def check_preferences(
    rows: pa.Table, config: PreferencesQuality, examples: int = 5, split: SplitConfig | None = None
) -> TableReport:
    """Runs the preferences' suite.

    Args:
        rows: in `PREFERENCES`.
        config: thresholds.
        examples: rows shown for each expectation that does not hold.
        split: what the dataset holds out; where no prompts (or no users) are, they may be in several splits.
    """
    split = split or SplitConfig()
    if rows.num_rows == 0:
        passed, allowed = config.min_rows == 0, f"at least {config.min_rows}"
        enough = Check("rows_present", "the dataset has enough rows", passed, "0 rows", allowed)
        return TableReport("preferences", 0, (enough,))
    frame, longest = _preference_columns(rows, config), f"at most {config.max_text_chars} characters"
    suite = [
        _unique("preference_id_unique", "no row is there twice", "preference_id"),
        _true("texts_differ", "chosen and rejected are different texts", "differs"),
        _each("weight_positive", "every row counts for something", "weight", 1e-12, None, "> 0"),
        _each("margin_in_range", "a margin lies in [0, 1]", "margin", 0, 1, "0 to 1"),
        _among("split_known", "the split is a known one", "split", _SPLITS),
        _each("evidence_present", "every row names the events it rests on", "evidence", 1, None, "at least 1 event"),
        _true("label_fits", "an unpaired row has a label, a paired one has none", "label_fits"),
        _each("text_length", "no text is longer than allowed", "longest", None, config.max_text_chars, longest),
        *_held_out(split),
        _share("tie_share", "share of ties among paired rows", "tie", config.max_tie_share),
        _sum("rows_present", "the dataset has enough rows", "one", config.min_rows),
        *(
            _sum(f"rows_of_{rule}", f"the rule {rule} made enough rows", f"rule:{rule}", count)
            for rule, count in sorted(config.min_rows_per_rule.items())
        ),
    ]  # fmt: skip

    def describe(number: int) -> str:
        row = rows.slice(number, 1).to_pylist()[0]
        other = "" if row["rejected"] is None else f" over {shown(row['rejected'], 50)!r}"
        about = f"{row['rule']}, {row['split']}, margin {row['margin']:g}, weight {row['weight']:g}"
        return f"{row['preference_id'][:16]} ({about}): {shown(row['chosen'], 50)!r}{other}"

    return TableReport("preferences", rows.num_rows, _run("preferences", frame, suite, describe, examples))


def check_fates(fates: pa.Table, ledger: Ledger, config: FatesQuality, examples: int = 5) -> TableReport:
    """Runs the fates' suite.

    Args:
        fates: in `FATES`.
        ledger: what came in and where it ended.
        config: thresholds.
        examples: rows shown for each expectation that does not hold.
    """
    balance = Check(
        "balance",
        "every row of the events table has one fate",
        ledger.balanced,
        f"{ledger.received} events, {sum(ledger.fates.values())} fates",
        "as many of one as of the other",
    )
    if fates.num_rows == 0:
        return TableReport("fates", 0, (balance,))
    suite = [
        _among("fate_known", "the fate is a known one", "fate", get_args(Fate)),
        _true("place_unique", "no row of the events table has two fates", "place_once"),
        _true("ready_has_rows", "an event is ready exactly when preference rows rest on it", "ready_fits"),
        _true("reason_given", "an event that is in no row says why", "reason_fits"),
        _share("waiting_share", "share of events that wait for others", "waiting", config.max_waiting_share),
        _share("conflict_share", "share of events whose id another event has", "conflict", config.max_conflict_share),
    ]  # fmt: skip

    def describe(number: int) -> str:
        row = fates.slice(number, 1).to_pylist()[0]
        why = f"/{row['reason']}" if row["reason"] else ""
        where = shown(f"{row['partition']}@{row['offset']}", 80)
        return f"{row['kind']} {shown(row['event_id'] or '(no id)', 60)}: {row['fate']}{why} at {where}"

    checks = _run("fates", _fate_columns(fates), suite, describe, examples)
    return TableReport("fates", fates.num_rows, (balance, *checks))


def _preference_columns(rows: pa.Table, config: PreferencesQuality) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    paired = pc.is_valid(rows["rejected"])
    lengths = [pc.fill_null(pc.utf8_length(rows[name]), 0) for name in ("chosen", "rejected")]
    tie = pc.and_(paired, pc.equal(rows["margin"], 0))
    # Of paired rows only: the mean leaves nulls out.
    ties = pc.if_else(paired, tie.cast(pa.float64()), pa.scalar(None, pa.float64()))
    if pc.all(pc.is_null(ties)).as_py():
        ties = pa.array([0.0] * rows.num_rows)
    frame = {
        "preference_id": rows["preference_id"],
        "differs": pc.fill_null(pc.not_equal(rows["chosen"], rows["rejected"]), True).cast(pa.int8()),
        "weight": rows["weight"],
        "margin": rows["margin"],
        "split": rows["split"],
        "evidence": pc.fill_null(pc.list_value_length(rows["evidence"]), 0),
        "label_fits": pc.not_equal(paired, pc.is_valid(rows["label"])).cast(pa.int8()),
        "longest": pc.max_element_wise(*lengths),
        "prompt_splits": _splits_of(rows, "prompt_key"),
        "user_splits": _splits_of(rows, "user_id"),
        "tie": ties,
        "one": pa.array([1] * rows.num_rows, pa.int64()),
        **{
            f"rule:{rule}": pc.equal(rows["rule"], rule).cast(pa.int64()) for rule in config.min_rows_per_rule
        },
    }
    return pd.DataFrame({name: values.to_pandas() for name, values in frame.items()})


def _splits_of(rows: pa.Table, column: str) -> pa.Array:
    """In how many splits each row's prompt or user is; 0 where the row names none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    counted = rows.select([column, "split"]).group_by(column).aggregate([("split", "count_distinct")])
    where = pc.index_in(rows[column], value_set=counted[column].combine_chunks())
    found = counted["split_count_distinct"].combine_chunks().take(where.combine_chunks())
    return pc.if_else(pc.is_valid(rows[column]), found, pa.scalar(0, pa.int64()))


def _fate_columns(fates: pa.Table) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    places = fates.select(["partition", "offset"])
    once = ~places.to_pandas().duplicated(keep=False)
    in_rows = pc.greater(pc.fill_null(pc.list_value_length(fates["preference_ids"]), 0), 0)
    ready = pc.equal(fates["fate"], "ready")
    reasoned = pc.is_in(fates["fate"], value_set=pa.array(_REASONED))
    reason_fits = pc.or_(pc.invert(reasoned), pc.is_valid(fates["reason"]))
    conflict = pc.fill_null(pc.equal(fates["reason"], "conflicting_duplicate"), False)
    return pd.DataFrame(
        {
            "fate": fates["fate"].to_pandas(),
            "place_once": once.astype("int8"),
            "ready_fits": pc.equal(ready, in_rows).cast(pa.int8()).to_pandas(),
            "reason_fits": reason_fits.cast(pa.int8()).to_pandas(),
            "waiting": pc.equal(fates["fate"], "waiting").cast(pa.float64()).to_pandas(),
            "conflict": conflict.cast(pa.float64()).to_pandas(),
        }
    )


def _run(
    name: str,
    frame: pd.DataFrame,
    suite: Sequence[_Expected],
    describe: Callable[[int], str],
    examples: int,
) -> tuple[Check, ...]:
    """Evaluates a suite; in its order.

    Raises:
        RuntimeError: an expectation could not be evaluated; a table is never passed unchecked.
    """
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    import great_expectations.expectations as gxe
    from great_expectations.data_context.types.base import ProgressBarsConfig

    logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.WARNING)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("tables").add_dataframe_asset(name)
    expectations = [
        getattr(gxe, expected.kind)(meta={"number": number}, **expected.arguments)
        for number, expected in enumerate(suite)
    ]
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(
            name=name,
            data=asset.add_batch_definition_whole_dataframe("whole"),
            suite=context.suites.add(gx.ExpectationSuite(name, expectations=expectations)),
        )
    )
    result = definition.run(
        batch_parameters={"dataframe": frame},
        result_format={"result_format": "SUMMARY", "partial_unexpected_count": examples},
    )
    checks: dict[int, Check] = {}
    for outcome in result.results:
        configuration = outcome.expectation_config
        number = int(configuration.meta["number"]) if configuration and configuration.meta else -1
        if outcome.exception_info.get("raised_exception") or number < 0:
            raise RuntimeError(f"an expectation of {name} was not evaluated: {outcome.exception_info}")
        checks[number] = _check(suite[number], outcome, len(frame), describe, examples)
    return tuple(checks[number] for number in range(len(suite)))


def _check(
    expected: _Expected, outcome: Any, rows: int, describe: Callable[[int], str], examples: int
) -> Check:
    found = outcome.result
    if "observed_value" in found and "unexpected_count" not in found:
        value = found["observed_value"]
        said = f"{value:.4g}" if isinstance(value, float) else str(value)
        return Check(expected.name, expected.meaning, bool(outcome.success), said, expected.allowed)
    count = int(found.get("unexpected_count") or 0)
    numbers = [int(number) for number in found.get("partial_unexpected_index_list") or []][:examples]
    said = "holds in every row" if count == 0 else f"does not hold in {count} of {rows} rows"
    return Check(
        expected.name,
        expected.meaning,
        bool(outcome.success),
        said,
        expected.allowed,
        tuple(describe(number) for number in numbers),
    )
