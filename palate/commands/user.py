"""Commands about one user: what is believed of their taste, and what to ask them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palate.commands.options import ConfigOption, JsonOption, SetOption, open_context
from palate.wording import counted, flat

if TYPE_CHECKING:
    import pyarrow as pa

    from palate.beliefs import Beliefs
    from palate.console import Out
    from reward_models.people import Person
    from reward_models.votes_of_rows import Given

_SHOWN = 10
_CANDIDATES = 2_000

UserArgument = Annotated[str, typer.Argument(help="The user's id, as events have it.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    group = typer.Typer(
        help="What is believed of one user's taste, and what to ask them.", no_args_is_help=True
    )
    group.command()(show)
    group.command("next-question")(next_question)
    app.add_typer(group, name="user")


def show(
    user_id: UserArgument,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Show what is believed of a user's taste, how sure that is, and which feedback it comes from."""
    from palate import beliefs

    context = open_context(config, set_, json_)
    found = beliefs.newest(context)
    person = found.model.person(user_id)
    document = _document(found, user_id, person)
    _print(context.out, document)
    context.out.result({"ok": True, "exit_code": 0, **document})
    return 0


def _document(found: Beliefs, user_id: str, person: Person) -> dict[str, Any]:
    own, everybody = found.model.explain(person.belief), found.model.explain()
    features: list[dict[str, Any]] = [
        {"feature": name, "reward": own[name][0], "std": own[name][1], "everybody": everybody[name][0]}
        for name in own
    ]
    features.sort(key=lambda f: abs(f["reward"] - f["everybody"]), reverse=True)
    return {
        "user_id": user_id,
        "votes": person.votes,
        "first_event": _time(person.first_event_us),
        "last_event": _time(person.last_event_us),
        "run": found.run,
        "dataset": found.dataset,
        "trust": found.model.taste.trust,
        "ties": found.model.tie_share(person),
        "ties_everybody": found.model.tie_share(None),
        "features": features,
        "evidence": _evidence(found.rows, person.rows),
    }


def _time(stamp_us: int) -> str | None:
    return datetime.fromtimestamp(stamp_us / 1e6, UTC).isoformat(timespec="seconds") if stamp_us else None


def _evidence(rows: pa.Table, ids: tuple[str, ...]) -> list[dict[str, Any]]:
    """The newest rows a belief rests on, newest first."""
    import pyarrow as pa
    import pyarrow.compute as pc

    shown = list(reversed(ids[-_SHOWN:]))
    kept = rows.filter(pc.is_in(rows["preference_id"], pa.array(shown, pa.string())))
    columns = ["preference_id", "event_time", "rule", "margin", "label", "chosen", "rejected", "evidence"]
    by_id = {row["preference_id"]: row for row in kept.select(columns).to_pylist()}
    return [by_id[i] for i in shown if i in by_id]


def _print(out: Out, about: dict[str, Any]) -> None:
    out.head(f"User {about['user_id']}")
    if about["votes"]:
        out.say(
            f"{counted(about['votes'], 'vote')} between {about['first_event']} and {about['last_event']}; "
            f"model of run {about['run']}, dataset {about['dataset']}."
        )
    else:
        out.say("Nothing from this user has been learned: this is what is expected of people like them.")
    if about["trust"] == 0:
        out.say("This model has one taste for everybody: what is personal did not predict people better.")
    out.table(
        "What a standard deviation more of it adds to the reward",
        ["of the reply", "this user", "sure to", "everybody"],
        [
            (f["feature"], f"{f['reward']:+.2f}", f"± {f['std']:.2f}", f"{f['everybody']:+.2f}")
            for f in about["features"][:_SHOWN]
        ],
    )
    out.say(f"Calls {about['ties']:.0%} of even pairs a tie; everybody {about['ties_everybody']:.0%}.")
    out.table(
        "From what" if about["evidence"] else "",
        ["when", "rule", "said", "better", "worse", "events"],
        [
            (
                f"{row['event_time']:%Y-%m-%d %H:%M}" if row["event_time"] else "–",
                row["rule"],
                _said(row),
                flat(row["chosen"], 40),
                flat(row["rejected"] or "–", 40),
                ", ".join(row["evidence"]),
            )
            for row in about["evidence"]
        ],
    )


def _said(row: dict[str, Any]) -> str:
    if row["rejected"] is None:
        return "liked" if row["label"] else "disliked"
    return "tie" if row["margin"] == 0 else "prefers"


def next_question(
    user_id: UserArgument,
    agent: Annotated[str | None, typer.Option(help="The agent that would ask.")] = None,
    candidates: Annotated[
        Path | None,
        typer.Option("--from", help="JSONL of prompt, first, second. Default: pairs of the newest dataset."),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", help="How many questions, best first.", min=1)] = 1,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Find the pair of replies whose comparison would tell most about a user's taste."""
    from palate import beliefs
    from reward_models.cold_start import next_questions

    context = open_context(config, set_, json_)
    pairs = None if candidates is None else _pairs_of_file(candidates)
    found = beliefs.newest(context)
    pairs = pairs or _pairs_of_rows(found.rows, context.project.seed)
    asked = next_questions(found.model, pairs, user_id, agent, count)
    questions: list[dict[str, Any]] = [
        {
            "prompt": pairs.prompts[q.pair],
            "first": pairs.first[q.pair],
            "second": pairs.second[q.pair],
            "information_nats": q.information,
            "expected": dict(zip(("first", "tie", "second"), map(float, q.probabilities), strict=True)),
        }
        for q in asked
    ]
    for number, question in enumerate(questions, 1):
        context.out.head(f"Question {number}: tells {question['information_nats']:.3f} nats")
        context.out.say(question["prompt"][-1]["content"])
        context.out.table(
            "",
            ["", "reply", "expected to win"],
            [(side, question[side], f"{question['expected'][side]:.0%}") for side in ("first", "second")],
        )
    context.out.result(
        {
            "ok": True,
            "exit_code": 0,
            "user_id": user_id,
            "candidates": len(pairs.prompts),
            "questions": questions,
        }
    )
    return 0


def _pairs_of_rows(rows: pa.Table, seed: int) -> Given:
    """Pairs people compared before, each once; some of them, where there are very many."""
    import numpy as np
    import pyarrow.compute as pc

    from reward_models.votes_of_rows import Given

    paired = rows.filter(pc.is_valid(rows["rejected"])).sort_by("preference_id")
    if paired.num_rows > _CANDIDATES:
        drawn = np.random.default_rng(seed).choice(paired.num_rows, _CANDIDATES, replace=False)
        paired = paired.take(np.sort(drawn))
    seen: dict[tuple[str, ...], tuple[Any, str, str]] = {}
    for row in paired.select(["prompt_key", "prompt", "chosen", "rejected"]).to_pylist():
        first, second = sorted((row["chosen"], row["rejected"]))  # whichever won is not given away
        seen.setdefault((row["prompt_key"], first, second), (row["prompt"], first, second))
    return (
        Given(*(list(column) for column in zip(*seen.values(), strict=True))) if seen else Given([], [], [])
    )


def _pairs_of_file(path: Path) -> Given:
    """Candidates of a JSONL file.

    Raises:
        ConfigError: a line is something else.
    """
    from palate.config import ConfigError
    from reward_models.votes_of_rows import Given

    prompts, first, second = [], [], []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(
            "The candidates cannot be read.", got=path, next_step="name a JSONL file"
        ) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompt = row["prompt"]
            chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            if not chat or not all(
                isinstance(m["role"], str) and isinstance(m["content"], str) for m in chat
            ):
                raise ValueError("a prompt is text, or a list of messages with role and content")
            if not isinstance(row["first"], str) or not isinstance(row["second"], str):
                raise ValueError("first and second are text")
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                "A line of the candidates is not a pair.",
                got=f"line {number}: {error}",
                allowed='{"prompt": text or messages, "first": text, "second": text}',
                next_step=f"correct {path}",
            ) from error
        prompts.append(chat)
        first.append(row["first"])
        second.append(row["second"])
    return Given(prompts, first, second)
