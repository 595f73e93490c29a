"""What was served to the people of a split, read from a real workspace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedback.events import prompt_key
from feedback.splits import SplitConfig, prompt_split, user_split
from palate.console import Out
from palate.context import Context, open_project
from palate.served import Look, look, served
from pipelines.build import BuildConfig, build
from pipelines.dataset import Dataset
from pipelines.ingest import ingest
from tests.unit.pipelines.made import feedback, interaction, write

NOTHING_HELD_OUT = [
    f"prefer.split.{name}=0"
    for name in ("test_users", "evaluation_users", "test_prompts", "evaluation_prompts")
]

Project = Callable[..., tuple[Context, Dataset]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose events were ingested, in so many files, and built."""
    monkeypatch.chdir(tmp_path)

    def made(
        *batches: list[dict[str, Any]], settings: list[str] = NOTHING_HELD_OUT
    ) -> tuple[Context, Dataset]:
        context = open_project(None, settings, Out(as_json=True))
        for number, events in enumerate(batches):
            path = write(tmp_path / f"events-{number}.jsonl", events)
            ingest(path, source="palate_jsonl", workspace=context.project.dir)
        return context, build(
            workspace=context.project.dir, config=BuildConfig(prefer=context.project.prefer)
        )

    return made


def names(found: Look) -> list[str]:
    return found.table["interaction_id"].to_pylist()


def test_every_reply_is_there_once_with_what_was_said_about_it(project: Project) -> None:
    said = [
        feedback(0, 1, "thumb", -1),
        feedback(1, 2, "copy", None),
        feedback(2, 2, "comment", {"text": "é"}),
    ]
    context, dataset = project(
        [interaction(n) for n in range(4)], said, [interaction(1), *said]
    )  # with copies
    found = look(context, dataset)
    assert names(found) == ["i0", "i1", "i2", "i3"] and found.left_out == {}
    assert found.table["verdict"].to_pylist() == [None, -1, None, None]
    assert found.table["copied"].to_pylist() == [False, False, True, False]
    assert found.table["comment"].to_pylist()[2] == "é"
    assert found.table["kept_share"].to_pylist() == [1.0] * 4
    assert served(context, dataset).equals(found.table)


def test_the_event_that_stands_for_an_id_is_the_one_that_is_read(project: Project) -> None:
    earlier, later = interaction(0, prompt="first"), interaction(0, prompt="second")
    later["event_time"] = interaction(9)["event_time"]
    context, dataset = project([later], [earlier])
    (prompt,) = look(context, dataset).table["prompt"].to_pylist()
    assert json.loads(prompt) == earlier["prompt"]


def test_only_the_events_of_the_dataset_count(project: Project) -> None:
    context, old = project([interaction(0)])
    _, new = project([interaction(0)], [interaction(1), feedback(0, 0)])
    assert look(context, old).table["verdict"].to_pylist() == [None]
    assert look(context, new).table["verdict"].to_pylist() == [1, None]


def test_people_of_other_splits_are_left_out_and_counted(project: Project) -> None:
    split = SplitConfig(test_users=0.4, evaluation_users=0, test_prompts=0, evaluation_prompts=0)
    settings = ["prefer.split.test_users=0.4", *NOTHING_HELD_OUT[1:]]
    events = [interaction(n, user=f"u{n}", uses=["train"] if n else []) for n in range(20)]
    context, dataset = project(events, settings=settings)
    ours = sorted(f"i{n}" for n in range(1, 20) if user_split(f"u{n}", split) == "train")
    assert user_split("u0", split) == "train" and 5 < len(ours) < 18
    found = look(context, dataset)
    assert names(found) == ours
    assert found.left_out == {"another_split": 19 - len(ours), "consent_train": 1}
    assert look(context, dataset, "test").left_out["consent_evaluate"] == 19 - len(ours)


def test_of_too_many_those_somebody_spoke_of_stay_and_the_rest_is_a_sample(project: Project) -> None:
    events = [interaction(n) for n in range(40)]
    context, dataset = project(
        [*events, feedback(0, 7), feedback(1, 8, "vote", {"among": ["i8", "i9"], "winner": "i9"})]
    )
    found = look(context, dataset, most=13)
    assert found.table.num_rows == 13 and found.left_out == {"over_maximum": 27}
    shares = dict(zip(names(found), found.table["kept_share"].to_pylist(), strict=True))
    assert {name: shares.pop(name) for name in ("i7", "i8", "i9")} == {"i7": 1.0, "i8": 1.0, "i9": 1.0}
    assert set(shares.values()) == {10 / 37}
    # By content: the sample of a larger table, and of the same events in other files, holds on to its rows.
    assert set(names(found)) <= set(names(look(context, dataset, most=20)))
    few = look(context, dataset, most=2)
    assert set(names(few)) <= {"i7", "i8", "i9"} and few.table["kept_share"].to_pylist() == [2 / 3] * 2


def test_the_next_interaction_tells_what_was_written_next_though_it_is_not_in_the_sample(
    project: Project,
) -> None:
    asked = interaction(0, session_id="s", prompt="Hé?")
    told = interaction(1, session_id="s")
    told["prompt"] = [*asked["prompt"], asked["completion"], {"role": "user", "content": "Und dann?"}]
    context, dataset = project([told], [asked, feedback(0, 0)])
    assert look(context, dataset).table["next_message"].to_pylist() == ["Und dann?", None]
    only = look(context, dataset, most=1)
    assert names(only) == ["i0"] and only.table["next_message"].to_pylist() == ["Und dann?"]
    assert only.table["evidence"].to_pylist() == [["f0", "i1"]]


def test_people_who_act_together_are_not_heard(project: Project) -> None:
    context, dataset = project(
        [interaction(0), feedback(0, 0, user_id="loud"), feedback(1, 0, value=-1, user_id="b")]
    )
    assert served(context, dataset)["verdict"].to_pylist() == [None]
    assert served(context, dataset, silenced=["loud"])["verdict"].to_pylist() == [-1]


def test_a_prompt_that_nearly_repeats_a_held_out_one_is_left_out(project: Project) -> None:
    long = "Please write a friendly message to the neighbours about the noisy party and the broken fence, number {}"
    settings = [*NOTHING_HELD_OUT[:2], "prefer.split.test_prompts=0.5", NOTHING_HELD_OUT[3]]
    events = [interaction(n, prompt=long.format(n), user="u") for n in range(6)]
    split = SplitConfig(test_users=0, evaluation_users=0, test_prompts=0.5, evaluation_prompts=0)
    texts = [f"Which of the {n} mountain roads is open in winter?" for n in range(20)]
    ours = next(
        t for t in texts if prompt_split(prompt_key([{"role": "user", "content": t}]), split) == "train"
    )
    other = interaction(6, prompt=ours, user="u")
    silent, nobody_spoke = project([*events, other], settings=settings)
    before = look(silent, nobody_spoke)
    near = [name for name in names(before) if name != "i6"]
    assert "i6" in names(before) and 0 < len(near) < 6  # both splits have some of the prompts that are alike
    heldout = next(n for n in range(6) if f"i{n}" not in near)
    context, dataset = project(
        [*events, other], [feedback(0, heldout, "edit", {"text": "better"}, user_id="u")], settings=settings
    )
    assert dataset.rows("test").num_rows == 1
    found = look(context, dataset)
    assert names(found) == ["i6"] and found.left_out["near_heldout_prompt"] == len(near)


def test_a_workspace_without_events_has_served_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    context = open_project(None, [], Out(as_json=True))
    assert look(context, Dataset("v", tmp_path, {})).table.num_rows == 0
