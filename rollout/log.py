"""The decision log in MLflow: one version of `<name>-decisions` per entry.

Creating a model version is MLflow's only atomic append: it hands out the next number and writes the tags in
the same transaction, on SQLite, PostgreSQL and through a server. Number n + 1 is only given after n can be
read, so a reader never sees a gap that is filled later.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from rollout.connection import Registry, retrying
from rollout.decisions import Decision, State, Unreadable, fold, from_tags
from rollout.errors import PromotionConflict

HEAD_TAG = "head"
_PAGE = 1_000


def all_versions(registry: Registry, model_name: str) -> list[Any]:
    """Every MLflow model version under a name, oldest first, whatever the number of pages."""
    found: list[Any] = []
    token: str | None = None
    while True:
        page_token = token

        def page(page_token: str | None = page_token) -> Any:
            return registry.client.search_model_versions(
                f"name='{model_name}'",
                max_results=_PAGE,
                order_by=["version_number ASC"],
                page_token=page_token,
            )

        versions = retrying(page)
        found.extend(versions)
        token = versions.token
        if not token:
            return sorted(found, key=lambda version: int(version.version))


def read_entries(registry: Registry) -> list[Decision | Unreadable]:
    """Every entry of the log, oldest first."""
    versions = all_versions(registry, registry.decisions_name)
    return [from_tags(int(version.version), dict(version.tags or {})) for version in versions]


def read_state(registry: Registry) -> State:
    """What the log says now."""
    return fold(read_entries(registry))


def append(registry: Registry, decision: Decision) -> tuple[Decision, State]:
    """Write a decision and find out whether it counted.

    A repetition after a lost answer does no harm: the second copy expects what the first one changed, so it
    is void.

    Args:
        registry: where to.
        decision: `entry` and `hash` are filled in here; `expects` says which state it was made on.

    Returns:
        The decision as it stands in the log, and the state read after it.

    Raises:
        PromotionConflict: another decision came first. Nothing changed but a void entry.
    """
    sealed = decision.model_copy(update={"nonce": uuid.uuid4().hex}).sealed()
    tags = sealed.to_tags()
    source = f"models:/{registry.name}/{decision.to_version}"
    retrying(lambda: registry.client.create_model_version(registry.decisions_name, source, tags=tags))
    state = read_state(registry)
    mine = [entry for entry in state.decisions if entry.nonce == sealed.nonce]
    for entry in mine:
        if entry.effective:
            return entry, state
    later = [d for d in state.decisions if d.effective and d.entry > decision.expects]
    winner = f"The log's newest entry is {state.head_entry}, not {decision.expects}."
    if later:
        first = later[0]
        winner = (
            f"Somebody else decided first: {first.actor}, {first.action} of v{first.to_version} "
            f"(entry {first.entry}, {first.at})."
        )
    raise PromotionConflict(
        f"{winner} Your decision is recorded as void and changed nothing.",
        got=f"{decision.action} of v{decision.to_version}, made on entry {decision.expects}",
        next_step="`palate status`, then decide again on what serves now",
    )


def remember_head(registry: Registry, state: State) -> None:
    """Note the newest entry outside the log, so that removing it would show."""
    if state.head is None:
        return
    value = json.dumps({"entry": state.head.entry, "hash": state.head.hash})
    retrying(lambda: registry.client.set_registered_model_tag(registry.decisions_name, HEAD_TAG, value))


def remembered_head(registry: Registry) -> tuple[int, str] | None:
    """The newest entry that was noted, as (number, hash); None if none was or the note is unreadable."""
    model = retrying(lambda: registry.client.get_registered_model(registry.decisions_name))
    try:
        note = json.loads((model.tags or {})[HEAD_TAG])
        return int(note["entry"]), str(note["hash"])
    except (KeyError, ValueError, TypeError):
        return None
