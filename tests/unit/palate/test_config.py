"""Project files: every shipped one loads, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from palate.config import ConfigError, load, resolved, source_path

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "file", sorted([*ROOT.glob("conf/*.toml"), ROOT / "palate/demo.toml"]), ids=lambda p: p.name
)
def test_shipped_files_load(file: Path) -> None:
    project = load(file)
    assert resolved(project)["seed"] == 0


def test_overrides_win_and_keep_their_type(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('name = "x"\n[train.dpo]\nbeta = 0.3\n')
    project = load(
        file, ["train.dpo.beta=0.5", "seed=7", "name=plain words", 'source.path="a=b"', "gates={win_rate={}}"]
    )
    assert (project.train.dpo.beta, project.seed, project.name, project.source.path) == (
        0.5,
        7,
        "plain words",
        "a=b",
    )
    assert list(project.gates) == ["win_rate"]
    one = load(file, ["gates.win_rate.min_prompts=5", "population.asks.train=9"])
    assert set(one.gates) == {"win_rate", "length_drift", "kl_budget", "reward_models"}
    assert one.gates["win_rate"] == {"min_prompts": 5}
    assert one.population.asks["train"] == 9 and one.population.asks["test"] > 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[train.dpo]\nbetta = 1", "train.dpo.betta"),
        ("seed = -1", "seed"),
        ("seed = ", "TOML"),
        ('[train]\nmethod = "ppo"', "dpo, grpo, kto, mix, online, words, none"),
        ('[reward]\nmethod = "oracle"', "preference_lm"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "p.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=named.replace(".", r"\.")) as found:
        load(file)
    assert found.value.exit_code == 2


def test_what_is_wrong_is_blamed_on_where_it_was_said(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("seed = 1\n")
    with pytest.raises(ConfigError, match=r"given with --set(.|\n)*did you mean train\.dpo\.beta\?"):
        load(file, ["train.dpo.betta=1"])
    with pytest.raises(ConfigError, match=r"given with --set(.|\n)*did you mean prefer\.split\.test_users\?"):
        load(file, ["prefer.test_users=0.1"])
    file.write_text("seeed = 1\n")
    with pytest.raises(ConfigError, match=r"p\.toml is not valid(.|\n)*did you mean seed\?"):
        load(file, ["train.dpo.beta=0.2"])


def test_relative_source_falls_back_to_the_shared_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALATE_SHARED_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    project = load(None, ["source.path=set/file.jsonl"])
    assert source_path(project, None) == tmp_path / "set/file.jsonl"
    assert source_path(project, Path("given")) == Path("given")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/file.jsonl").touch()
    assert source_path(project, None) == Path("set/file.jsonl")
