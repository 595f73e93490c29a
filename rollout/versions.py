"""What a registered version is: read from its tags, judged by its gates. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from rollout.decisions import State, canonical_json
from rollout.errors import RolloutError

Overall = Literal["pass", "fail", "insufficient_data"]
Role = Literal["base", "candidate"]

GATES_TAG = "gates"
RESERVED_TAGS = frozenset(
    {
        "adapter_sha256",
        "base_id",
        "base_revision",
        "compared_with",
        "dataset_version",
        "gates",
        "gates_overall",
        "model_id",
        "role",
        "run_id",
        "run_key",
    }
)


class ModelVersionInfo(BaseModel):
    """One registered model."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    version: int
    role: Role
    """`base`: the untouched base model; `candidate`: made by training."""
    base_id: str
    base_revision: str
    adapter_sha256: str
    dataset_version: str
    """Version of the preference data it learned from; empty for the base."""
    run_id: str
    """MLflow run that made it; may be empty for the base."""
    run_key: str
    """Names the work that made it; registering the same work again gives the same version."""
    model_id: str
    """MLflow logged model that holds the files."""
    compared_with: int | None
    """Version that its gates compared it with."""
    gates: tuple[dict[str, Any], ...]
    overall: Overall
    """`pass` only if every gate passed and there was one."""
    created: datetime
    tags: dict[str, str]
    """Everything else that was noted."""


def overall(gates: Sequence[Mapping[str, Any]]) -> Overall:
    """Sum verdicts up: fail if any failed; pass if all passed and there is one; else insufficient data.

    A verdict that is none of the three counts as a failure: an unknown word must never let a model through.
    """
    verdicts = [gate.get("verdict") for gate in gates]
    if any(verdict not in ("pass", "insufficient_data") for verdict in verdicts):
        return "fail"
    if not verdicts or "insufficient_data" in verdicts:
        return "insufficient_data"
    return "pass"


def plain(value: Any) -> Any:
    """The value as JSON can hold it: NaN and infinities become null, tuples lists, unknown things text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    return str(value)


def version_tags(
    *,
    role: Role,
    base_id: str,
    base_revision: str,
    adapter_sha256: str,
    model_id: str,
    run_id: str,
    run_key: str,
    dataset_version: str = "",
    compared_with: int | None = None,
    verdicts: Sequence[Mapping[str, Any]] = (),
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The tags of a new version.

    Raises:
        RolloutError: an extra tag takes a name that palate uses itself.
    """
    taken = sorted(key for key in extra or {} if key in RESERVED_TAGS or key.startswith("gate."))
    if taken:
        raise RolloutError("Tags with these names are palate's own.", got=taken, next_step="rename them")
    tags = {
        "role": role,
        "base_id": base_id,
        "base_revision": base_revision,
        "adapter_sha256": adapter_sha256,
        "model_id": model_id,
        "run_id": run_id,
        "run_key": run_key,
        "dataset_version": dataset_version,
        "compared_with": "" if compared_with is None else str(compared_with),
        **gate_tags(verdicts),
    }
    if role == "base":
        tags.pop("gates_overall")
    return {**{key: str(value) for key, value in (extra or {}).items()}, **tags}


def gate_tags(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """All verdicts in one tag, which decides, and each in its own, for people who filter in MLflow."""
    gates = [plain(verdict) for verdict in verdicts]
    tags = {GATES_TAG: canonical_json(gates), "gates_overall": overall(gates)}
    for gate in gates:
        # MLflow refuses other characters.
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", str(gate.get("gate")))[:200]
        tags[f"gate.{name}"] = str(gate.get("verdict"))
    return tags


def info(version: Any) -> ModelVersionInfo | None:
    """Read an MLflow model version; None if palate did not register it (or its tags were destroyed)."""
    tags = {key: value or "" for key, value in dict(version.tags or {}).items()}
    try:
        gates = json.loads(tags[GATES_TAG])
        known = {key: tags.pop(key) for key in RESERVED_TAGS if key in tags and key != "gates_overall"}
        return ModelVersionInfo(
            name=version.name,
            version=int(version.version),
            role=known["role"],
            base_id=known["base_id"],
            base_revision=known["base_revision"],
            adapter_sha256=known["adapter_sha256"],
            dataset_version=known["dataset_version"],
            run_id=known["run_id"],
            run_key=known["run_key"],
            model_id=known["model_id"],
            compared_with=int(known["compared_with"]) if known["compared_with"] else None,
            gates=tuple(gates),
            overall=overall(gates),
            created=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC),
            tags=tags,
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def distinct(versions: Iterable[ModelVersionInfo]) -> list[ModelVersionInfo]:
    """Without repetitions: of versions with one run key the lowest is the version, the others are accidents.

    Two processes that register the same work at the same moment both create a version; this rule lets both
    agree on one.
    """
    first: dict[str, ModelVersionInfo] = {}
    for version in sorted(versions, key=lambda version: version.version):
        first.setdefault(version.run_key, version)
    return list(first.values())


def newest_candidate(versions: Iterable[ModelVersionInfo], state: State) -> ModelVersionInfo | None:
    """The candidate that waits for a decision: the newest one that is newer than every champion so far."""
    decided = max(state.champions, default=0)
    waiting = [v for v in distinct(versions) if v.role == "candidate" and v.version > decided]
    return waiting[-1] if waiting else None
