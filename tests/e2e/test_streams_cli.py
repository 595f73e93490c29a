"""What became of events, as a user asks for it: fate, ledger, replay, maintain, and the stop before training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout.connection import RegistryConfig, connect
from rollout.models import read_aliases
from tests.e2e.conftest import Palate, Result, run_palate, settings
from tests.unit.pipelines.made import history, interaction, lines

EVERYTHING_TRAINS = [
    part
    for split in ("test", "evaluation")
    for what in ("users", "prompts")
    for part in ("--set", f"prefer.split.{split}_{what}=0.0")
]


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """Sixty events, and twelve lines that are none."""
    file = tmp_path / "events.jsonl"
    broken = [b"{not json <script>\x1b[31m\n"] * 9 + [b'{"type":"interaction","interaction_id":"i700"}\n'] * 3
    file.write_bytes(lines(history(60)) + b"".join(broken))
    return file


def test_a_run_stops_before_it_trains(palate: Palate, events: Path, tiny_base: Path, tmp_path: Path) -> None:
    command = ["run", "--input", str(events), *EVERYTHING_TRAINS, *settings(tiny_base)]
    stopped = palate(*command, "--json")
    assert stopped.code == 4, stopped.err
    error = stopped.json["error"]
    assert error["type"] == "BadData" and "not_json" in error["what"]
    assert error["got"].count("{not json <script>") == 5 and "\x1b" not in stopped.err
    workspace = tmp_path / ".palate"
    assert not (workspace / "updates").exists() and not (workspace / "datasets").exists()
    (page,) = (workspace / "validation").glob("*.html")
    document = json.loads(page.with_suffix(".json").read_text())
    assert document["passed"] is False and document["arrivals"]["bad"] == 12
    assert palate(*command, "--json").code == 4  # nothing new came, and it is as bad as before

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{workspace / 'mlflow' / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (run,) = [r for r in client.search_runs(experiments) if "palate.stopped" in r.data.tags]
    assert run.info.status == "FAILED"
    names = {Path(artifact.path).suffix for artifact in client.list_artifacts(run.info.run_id, "validation")}
    assert names == {".html", ".json"}


def test_letters_are_asked_for_mended_and_accounted_for(palate: Palate, events: Path, tmp_path: Path) -> None:
    def said(*arguments: str) -> Result:
        return palate(*arguments, "--json")

    assert said("ingest", str(events)).code == 0
    assert said("build").code == 0
    letter = said("fate", "i700").json["arrivals"][0]
    assert (letter["kind"], letter["fate_reason"]) == ("dead_letter", "missing_field")
    assert said("replay").code == 2
    assert said("replay", "--dead-letters", "--since", "1h", "--dry-run").json["letters"] == 12
    (tmp_path / "my_mending.py").write_text("def same(raw, reason, detail):\n    return raw\n")
    edit = ("--edit-with", "my_mending:same")
    assert said("replay", "--dead-letters", *edit, "--dry-run").json["letters"] == 12
    assert said("replay", "--dead-letters", *edit, "--export", "letters.jsonl").code == 2
    assert (
        said("replay", "--dead-letters", "--reason", "missing_field", "--export", "letters.jsonl").code == 0
    )
    mended = []
    for number, line in enumerate((tmp_path / "letters.jsonl").read_text().splitlines()):
        mended.append(json.dumps({**json.loads(line), "raw": interaction(700 + number)}))
    (tmp_path / "letters.jsonl").write_text("\n".join(mended))
    done = said("replay", "--from", "letters.jsonl")
    assert (done.code, done.json["passing"]) == (0, 3)
    assert said("replay", "--from", "letters.jsonl").code == 5
    assert said("build").code == 5  # three replies that nobody spoke of make no row
    ledger = said("ledger", "--since", "2d")
    assert ledger.code == 0 and ledger.json["balanced"] and ledger.json["received"] == 75
    assert said("ledger", "--since", "whenever").code == 2
    story = said("fate", "i700").json["arrivals"]
    event = next(arrival for arrival in story if arrival["event_id"] == "i700" and arrival["replay_of"])
    letter = next(arrival for arrival in story if arrival["place"] == event["replay_of"])
    assert letter["replayed_as"] == [event["place"]] and event["fate"] == "no_preference"
    assert said("maintain").code == 0
    after = said("ledger", "--since", "2d").json
    assert after["fates"] == ledger.json["fates"]
    unknown = said("fate", "nobody")
    assert unknown.code == 1 and "palate ingest" in unknown.json["error"]["next_step"]


def test_a_story_reaches_the_model(demo_workspace: tuple[Path, Result]) -> None:
    cwd, demo = demo_workspace
    options = ["--set", "workspace.dir=.palate/demo", "--set", "registry.name=demo-assistant", "--json"]
    record = json.loads(next((cwd / ".palate/demo/runs").glob("*/record.json")).read_text())
    options += ["--set", f"registry.name={record['config']['registry']['name']}"]
    from pipelines.dataset import load

    row = load(cwd / ".palate/demo").rows("train").to_pylist()[0]
    signal = next(name for name in row["evidence"])
    found = run_palate(cwd, "fate", signal, *options)
    assert found.code == 0, found.err
    story = found.json
    assert row["preference_id"] in {r["preference_id"] for r in story["rows"]}
    assert [run["trained"] for run in story["runs"]] == [True]
    assert story["runs"][0]["run_id"] == demo.json["run_id"]
    assert [model["version"] for model in story["models"]] == [demo.json["candidate"]]
    # Other tests promote and roll back in this workspace, so the registry says which aliases those are now.
    registry = connect(cwd / ".palate/demo", RegistryConfig(**record["config"]["registry"]))
    held = sorted(
        alias for alias, version in read_aliases(registry).items() if version == demo.json["candidate"]
    )
    assert story["models"][0]["aliases"] == held
    ledger = run_palate(cwd, "ledger", *options)
    assert ledger.code == 0 and ledger.json["fates"]["trained"] > 0
    validation = list((cwd / ".palate/demo/validation").glob("*.json"))
    assert [json.loads(file.read_text())["passed"] for file in validation] == [True]
