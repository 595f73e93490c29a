"""What a person meets first: help, wrong use, an empty directory."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.e2e.conftest import PALATE, Palate, environment


def test_help_is_fast() -> None:
    def cpu_s() -> float:
        before = os.times()
        subprocess.run([str(PALATE), "--help"], env=environment(), check=True, capture_output=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    # Seconds of the processor, which on an idle machine are the seconds one waits: other tests run beside this one.
    assert min(cpu_s() for _ in range(5)) < 0.3


def test_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "pyarrow", "mlflow", "pydantic", "numpy")
    code = f"import sys, palate.cli; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [str(PALATE.with_name("python")), "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_init_writes_a_file_that_loads_to_the_defaults(palate: Palate, tmp_path: Path) -> None:
    assert palate("init").code == 0
    text = (tmp_path / "palate.toml").read_text()
    from palate.config import Project, load

    assert load(tmp_path / "palate.toml") == Project()
    assert tomllib.loads(text)["train"]["dpo"]["beta"] == 0.1
    again = palate("init", "--json")
    assert again.code == 2 and (tmp_path / "palate.toml").read_text() == text
    assert again.json["error"]["type"] == "ConfigError"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "missing.toml"), "no such project file"),
        (("run", "--set", "train.dpo.beta=0"), "greater than 0"),
        (("run", "--set", "train.dpo.betta=1"), "betta"),
        (("run", "--set", "nonsense"), "dotted.name=value"),
        (("run", "--set", "model.base=ftp:x"), "hub:"),
        (("run", "--set", "train.dpo.batch_pairs=6"), "must divide"),
        (("run", "--set", "evaluation.prompts=nowhere.jsonl"), "nowhere.jsonl"),
        (("show", "everything"), "dead-letters"),
        (("ingest", "a.jsonl", "--input", "b.jsonl"), "two places"),
        (("frobnicate",), "No such command"),
        (("run", "--set", "gates={no_such_gate={}}"), "win_rate"),
    ],
)
def test_wrong_use_is_explained(palate: Palate, arguments: tuple[str, ...], said: str) -> None:
    result = palate(*arguments, "--json")
    assert result.code == 2
    assert "Traceback" not in result.err
    assert said in result.err + result.out
    assert json.loads(result.out.splitlines()[-1])["ok"] is False


def test_in_an_empty_directory(palate: Palate, tmp_path: Path) -> None:
    assert palate("build", "--json").code == 1
    status = palate("status", "--json")
    assert status.code == 0 and status.json["status"]["champion"] is None
    assert palate("promote", "--json").code == 5
    assert palate("rollback", "--json").code == 5
    assert palate("run", "--json").code == 2
    assert palate("show", "run", "nosuch", "--json").code == 1
    (tmp_path / "events").mkdir()
    empty = palate("ingest", "events")
    assert empty.code == 5 and "no *.jsonl file yet" in empty.out


def test_schema_is_json_schema(palate: Palate) -> None:
    import jsonschema

    result = palate("schema")
    schema = json.loads(result.out)
    jsonschema.Draft202012Validator.check_schema(schema)
    event = {
        "type": "feedback",
        "feedback_id": "f",
        "interaction_id": "i",
        "event_time": "2026-01-01T00:00:00Z",
        "kind": "thumb",
        "value": 1,
    }
    jsonschema.validate(event, schema)


def test_malformed_events_are_all_accounted_for(palate: Palate, tmp_path: Path) -> None:
    good = {
        "type": "interaction",
        "interaction_id": "i1",
        "event_time": "2026-01-01T00:00:00Z",
        "prompt": [{"role": "user", "content": "hej då 🙂"}],
        "completion": {"role": "assistant", "content": "hej"},
    }
    orphan = {
        "type": "feedback",
        "feedback_id": "f1",
        "interaction_id": "nobody",
        "event_time": "2026-01-01T00:00:00Z",
        "kind": "thumb",
        "value": 1,
    }
    lines = [
        json.dumps(good).encode(),
        json.dumps(good).encode(),
        json.dumps(good | {"completion": {"role": "assistant", "content": "another body"}}).encode(),
        json.dumps(orphan).encode(),
        b"not json",
        b"[]",
        b'{"type": "interaction"}',
        json.dumps(good | {"interaction_id": "i2", "prompt": 7}).encode(),
        json.dumps(good | {"interaction_id": "i3", "event_time": "2999-01-01T00:00:00Z"}).encode(),
        json.dumps(orphan | {"feedback_id": "f2", "kind": "shrug"}).encode(),
        json.dumps(
            orphan
            | {"feedback_id": "f3", "kind": "rating", "value": {"value": float("nan"), "lo": 0, "hi": 1}}
        ).encode(),
        json.dumps(good | {"interaction_id": "i4\x00"}).encode(),
        json.dumps(good | {"interaction_id": "i5"}).encode().replace(b"hej", b"h\xff\xfej"),
        json.dumps(
            good | {"interaction_id": "i6", "completion": {"role": "assistant", "content": "x" * 2_000_000}}
        ).encode(),
    ]
    (tmp_path / "bad.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    result = palate("ingest", "bad.jsonl", "--json")
    assert result.code == 0, result.err
    found = result.json
    assert found["received"] == len(lines)
    assert found["interactions"] + found["feedback"] + sum(found["dead_letters"].values()) == len(lines)
    assert sum(found["dead_letters"].values()) == 10
    assert palate("build", "--json").code == 0
    fates = palate("show", "fates", "--json").json
    assert fates["balanced"] and sum(fates["fates"].values()) == len(lines)
    assert fates["fates"]["waiting"] == 1 and fates["fates"]["duplicate"] == 1
    assert fates["reasons"]["dead_letter/conflicting_duplicate"] == 1
    letters = palate("show", "dead-letters", "--json").json["dead_letters"]
    assert len(letters) == 10 and all(letter["reason"] for letter in letters)
    assert palate("ingest", "bad.jsonl", "--json").code == 5
