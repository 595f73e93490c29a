"""Write one decision and let the aliases follow. No rule lives here; see `rollout.promote`."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rollout import adapters
from rollout.aliases import settle
from rollout.connection import Registry
from rollout.decisions import Action, Decision, State
from rollout.errors import RolloutError
from rollout.log import append
from rollout.stored import fetch_and_check
from rollout.versions import ModelVersionInfo

_LONGEST_TEXT = 4_000


def decide(
    registry: Registry,
    seen: State,
    *,
    action: Action,
    target: ModelVersionInfo,
    actor: str,
    reason: str,
    override: bool = False,
    now: datetime | None = None,
) -> Decision:
    """Record that `target` serves from now on, provided that `seen` still is the newest state.

    The target's files are fetched from the registry and checked first, so that the champion always is a
    model that loads.

    Args:
        registry: where.
        seen: state that the decision was made on.
        action: what is done.
        target: version that will serve.
        actor: who decided.
        reason: why.
        override: whether gates that did not pass were overruled.
        now: time of the decision; None is the clock's.

    Raises:
        BrokenAdapter: the target cannot be loaded; nothing was written.
        PromotionConflict: another decision came first.
    """
    actor = clean_text(actor, "actor")
    reason = clean_text(reason, "reason")
    registry.adapters_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=registry.adapters_dir, prefix=".check-") as folder:
        fetch_and_check(
            registry, target.model_id, target.adapter_sha256, Path(folder) / "adapter", adapters.check
        )
    decision = Decision(
        entry=1,
        action=action,
        from_version=seen.champion,
        to_version=target.version,
        actor=actor,
        reason=reason,
        override=override,
        gates=target.gates,
        adapter_sha256=target.adapter_sha256,
        dataset_version=target.dataset_version,
        at=_utc(now or datetime.now(UTC)),
        expects=seen.head_entry,
        prev_hash=seen.head_hash,
        nonce="",
    )
    written, state = append(registry, decision)
    settle(registry, state)
    return written


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clean_text(text: str, what: str) -> str:
    """What a person wrote, fit for a record: trimmed, not empty, no control characters.

    Raises:
        RolloutError: says what is wrong.
    """
    trimmed = text.strip()
    if not trimmed:
        raise RolloutError(f"The {what} is empty.", next_step=f"give the {what} in a few words")
    if len(trimmed) > _LONGEST_TEXT:
        raise RolloutError(
            f"The {what} is too long.", got=f"{len(trimmed)} characters", allowed=f"up to {_LONGEST_TEXT}"
        )
    bad = sorted({f"U+{ord(c):04X}" for c in trimmed if not c.isprintable() and c not in "\n\t"})
    if bad:
        raise RolloutError(f"The {what} contains control characters.", got=", ".join(bad[:5]))
    return trimmed
