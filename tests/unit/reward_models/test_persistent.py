"""The mapping whose changed copies are cheap, against a plain dict."""

from __future__ import annotations

import pickle
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from reward_models.persistent import Persistent


class Colliding:
    """Keys that all have the same hash."""

    def __init__(self, name: int) -> None:
        self.name = name

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Colliding) and self.name == other.name


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.integers(-300, 300) | st.text(max_size=2), st.integers(), max_size=120)))
def test_it_is_a_dict_and_what_it_came_from_stays_as_it_was(steps: list[dict[object, int]]) -> None:
    found: Persistent[object, int] = Persistent()
    plain: dict[object, int] = {}
    before = []
    for step in steps:
        before.append((found, dict(plain)))
        found, plain = found.and_(step), plain | step
        assert len(found) == len(plain) and dict(found) == plain
    for old, wanted in before:
        assert old == wanted and len(old) == len(wanted)


def test_one_key_after_the_other_among_many() -> None:
    found = Persistent({str(i): i for i in range(5_000)})
    for i in range(5_000, 5_300):
        found = found.and_({str(i): i})
    found = found.and_({"17": -1})
    assert len(found) == 5_300 and found["17"] == -1 and found["5299"] == 5_299
    assert "5300" not in found and found.get("5300") is None
    assert sorted(found.values()) == sorted([*range(17), *range(18, 5_300), -1])


def test_keys_of_one_hash_are_told_apart() -> None:
    found = Persistent({Colliding(i): i for i in range(100)}).and_({Colliding(100): 100, Colliding(3): -3})
    assert len(found) == 101 and found[Colliding(3)] == -3 and found[Colliding(99)] == 99


def test_nothing_new_is_the_same_object() -> None:
    found = Persistent({"a": 1})
    assert found.and_({}) is found and Persistent(found) == found


def test_it_can_be_sent_to_another_process() -> None:
    content = {f"ключ-{i}": i for i in range(200)}
    code = (
        "import pickle, sys; p = pickle.load(sys.stdin.buffer); print(all(p[k] == v for k, v in p.items()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(Persistent(content)), capture_output=True,
        env={"PYTHONHASHSEED": "123", "PYTHONPATH": ":".join(sys.path)}, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == b"True"
