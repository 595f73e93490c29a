"""The commented project file, written from the settings themselves so that it cannot go stale."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from palate.config import Project

HEAD = """# palate project file. Every setting is shown with its default; delete what you do not change.
# Check it with: palate doctor

"""

_LEFT_OPEN = {("source", "name")}
"""Commented out although they have a default: a format that is set is no longer recognised."""


def commented() -> str:
    """TOML of the default project; each setting under its one-line description, unset ones commented out."""
    return HEAD + "\n".join(_table(Project, Project(), ())) + "\n"


def _table(model: type[BaseModel], value: BaseModel, path: tuple[str, ...]) -> list[str]:
    lines: list[str] = []
    nested: list[tuple[str, FieldInfo, Any]] = []
    if path:
        lines.append(f"[{'.'.join(path)}]")
    for name, field in model.model_fields.items():
        item = getattr(value, name)
        if isinstance(item, BaseModel) or _is_table_of_tables(item):
            nested.append((name, field, item))
            continue
        if field.description:
            lines += [f"# {line.strip()}" for line in field.description.splitlines()]
        if item is None:
            lines.append(f"# {name} = {_example(field)}")
        else:
            mark = "# " if (*path, name) in _LEFT_OPEN else ""
            lines.append(f"{mark}{name} = {_toml(item)}")
    lines.append("")
    for name, field, item in nested:
        if isinstance(item, BaseModel):
            lines += _table(type(item), item, (*path, name))
        else:
            if field.description:
                lines += [f"# {line.strip()}" for line in field.description.splitlines()]
            for key, settings in item.items():
                lines += [
                    f"[{'.'.join((*path, name, key))}]",
                    *(f"{k} = {_toml(v)}" for k, v in settings.items()),
                    "",
                ]
    return lines


def _is_table_of_tables(item: object) -> bool:
    return isinstance(item, dict) and bool(item) and all(isinstance(v, dict) for v in item.values())


def _example(field: FieldInfo) -> str:
    kinds = get_args(field.annotation) if get_origin(field.annotation) in (Union, types.UnionType) else ()
    return "0" if int in kinds else '""'


def _toml(item: Any) -> str:
    if isinstance(item, bool):
        return str(item).lower()
    if isinstance(item, Path | str):
        return json.dumps(str(item), ensure_ascii=False)
    if isinstance(item, list | tuple | set | frozenset):
        return "[" + ", ".join(_toml(x) for x in item) + "]"
    if isinstance(item, dict):
        return (
            "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in item.items()) + " }"
            if item
            else "{}"
        )
    if hasattr(item, "isoformat"):
        return str(item.isoformat())
    return str(item)
