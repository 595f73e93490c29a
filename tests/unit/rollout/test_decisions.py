"""The decision log's pure core: folding, racing, rolling back, and finding what was edited."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollout.decisions import Decision, State, Unreadable, content_hash, fold, from_tags, problems

_nonces = itertools.count()


def made_on(state: State, entry: int, to: int, action: str = "promote", **changes: Any) -> Decision:
    """An entry as somebody who saw `state` writes it."""
    return Decision.model_validate(
        {
            "entry": entry,
            "action": action,
            "from_version": state.champion,
            "to_version": to,
            "actor": "ada",
            "reason": "all gates passed",
            "gates": ({"gate": "win_rate", "verdict": "pass", "value": 0.61},),
            "adapter_sha256": f"{to:064x}",
            "dataset_version": "d1",
            "at": "2026-01-01T00:00:00.000Z",
            "expects": state.head_entry,
            "prev_hash": state.head_hash,
            "nonce": str(next(_nonces)),
            **changes,
        }
    ).sealed()


def log_of(*steps: tuple[str, int]) -> list[Decision]:
    """A log in which everybody saw the newest state."""
    entries: list[Decision] = []
    for action, to in steps:
        entries.append(made_on(fold(entries), len(entries) + 1, to, action))
    return entries


def test_an_empty_log_has_no_champion() -> None:
    state = fold([])
    assert (state.champion, state.previous, state.head_entry, state.head_hash) == (None, None, 0, "")
    assert problems([]) == []


def test_two_promoters_who_saw_the_same_state_cannot_both_win() -> None:
    log = log_of(("found", 1))
    seen = fold(log)
    log += [made_on(seen, 2, 2, actor="ada"), made_on(seen, 3, 3, actor="bob")]

    state = fold(log)
    assert state.champion == 2
    assert [decision.effective for decision in state.decisions] == [True, True, False]
    # Whoever comes next builds on the winner, not on the void entry.
    log.append(made_on(state, 4, 3))
    assert fold(log).champion == 3
    assert problems(log) == []


def test_rolling_back_twice_goes_back_two_steps() -> None:
    log = log_of(("found", 1), ("promote", 2), ("promote", 3))
    for expected in (2, 1):
        state = fold(log)
        assert state.previous == expected
        log.append(made_on(state, len(log) + 1, expected, "rollback"))
    assert fold(log).stack == (1,)
    assert fold(log).previous is None
    # A dropped champion may come back, and can itself be rolled back.
    log.append(made_on(fold(log), 6, 3, "rollback"))
    assert fold(log).stack == (1, 3)
    assert fold(log).champions == (1, 2, 3)


def test_rolling_back_far_drops_everything_above() -> None:
    assert fold(log_of(("found", 1), ("promote", 2), ("promote", 3), ("rollback", 1))).stack == (1,)


def test_restoring_the_champion_changes_nothing_but_the_head() -> None:
    state = fold(log_of(("found", 1), ("promote", 2), ("restore", 2)))
    assert (state.stack, state.head_entry) == ((1, 2), 3)


def test_an_entry_survives_the_registry_tags() -> None:
    text = 'ünïcode "quotes" {braces} 5 % null\nsecond line'
    decision = made_on(fold(log_of(("found", 1))), 2, 2, reason=text, override=True)
    tags = decision.to_tags()
    assert all(isinstance(value, str) for value in tags.values())
    assert from_tags(2, {**tags, "mlflow.something": "else"}) == decision


def test_foreign_entries_are_reported_and_change_nothing() -> None:
    log = log_of(("found", 1))
    stray = from_tags(2, {"made": "by hand"})
    assert isinstance(stray, Unreadable)
    state = fold([*log, stray])
    assert state.champion == 1
    assert [(p.entry, p.breaks) for p in problems([*log, stray])] == [(2, False)]


def test_every_changed_field_is_found() -> None:
    log = log_of(("found", 1), ("promote", 2), ("promote", 3))
    edits: dict[str, Any] = {
        "action": "rollback",
        "from_version": 7,
        "to_version": 7,
        "actor": "eve",
        "reason": "because",
        "override": True,
        "gates": (),
        "adapter_sha256": "0" * 64,
        "dataset_version": "d2",
        "at": "2027-01-01T00:00:00.000Z",
        "expects": 0,
        "prev_hash": "0" * 64,
        "nonce": "x",
        "hash": "0" * 64,
    }
    assert edits.keys() == Decision.model_fields.keys() - {"entry", "effective"}
    for field, value in edits.items():
        edited = [log[0], log[1].model_copy(update={field: value}), log[2]]
        assert any(p.entry == 2 and p.breaks for p in problems(edited)), field


def test_a_forger_who_reseals_an_entry_breaks_the_chain_after_it() -> None:
    log = log_of(("found", 1), ("promote", 2), ("promote", 3))
    forged = log[1].model_copy(update={"reason": "somebody else's words"}).sealed()
    assert forged.hash == content_hash(forged)
    assert [p.entry for p in problems([log[0], forged, log[2]]) if p.breaks] == [3]


def test_a_removed_decision_breaks_the_chain_a_removed_void_entry_does_not() -> None:
    log = log_of(("found", 1), ("promote", 2))
    void = made_on(fold(log[:1]), 3, 3)
    last = made_on(fold([*log, void]), 4, 4)
    assert problems([*log, void, last]) == []
    assert [(p.entry, p.breaks) for p in problems([*log, last])] == [(3, False)]
    assert any(p.breaks for p in problems([log[0], void, last]))


@st.composite
def raced_logs(draw: st.DrawFn) -> list[Decision]:
    """Logs whose writers saw the newest state or any older one."""
    entries: list[Decision] = []
    for number in range(1, draw(st.integers(1, 12)) + 1):
        seen = fold(entries[: draw(st.integers(0, len(entries)))])
        entries.append(made_on(seen, number, draw(st.integers(1, 5))))
    return entries


@given(raced_logs(), st.randoms(use_true_random=False))
def test_any_race_leaves_one_winner_per_head_and_an_unbroken_chain(log: list[Decision], random: Any) -> None:
    state = fold(log)
    effective = [decision for decision in state.decisions if decision.effective]
    expected = [decision.expects for decision in effective]
    assert len(expected) == len(set(expected))
    assert expected == [0, *(decision.entry for decision in effective[:-1])]
    assert state.champion == effective[-1].to_version
    assert problems(log) == []
    # The order of reading does not matter, and later entries never change what an earlier one did.
    shuffled = random.sample(log, len(log))
    assert fold(shuffled) == state
    for cut in range(len(log)):
        assert fold(log[:cut]).decisions == state.decisions[:cut]
