"""Which places are tracking servers."""

from __future__ import annotations

import pytest

from pipelines.mlflow_traces_fetch import is_tracking_uri


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        ("http://mlflow.internal:5000", True),
        ("sqlite:///mlflow.db", True),
        ("postgresql+psycopg2://u@h/db", True),
        ("databricks", True),
        ("databricks://profile", True),
        ("databricks_traces.jsonl", False),
        ("databricks/export.json", False),
        ("http.jsonl", False),
        ("exports/", False),
        ("s3://bucket/traces", False),
    ],
)
def test_only_addresses_are_servers(place, wanted):
    assert is_tracking_uri(place) is wanted


def test_what_is_here_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "databricks").mkdir()
    assert not is_tracking_uri("databricks")
