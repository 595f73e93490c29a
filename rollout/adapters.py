"""A LoRA adapter as a directory: what identifies it and what makes it loadable. No torch needed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from rollout.errors import BrokenAdapter

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"


def digest(adapter_dir: Path) -> str:
    """Identify an adapter by its files: sha256 over sorted relative names and contents.

    Each name and each content is hashed by itself first, so that no two different directories can give the
    same byte stream.

    Returns:
        64 hex digits.

    Raises:
        BrokenAdapter: the directory is missing, empty, or contains a link.
    """
    if not adapter_dir.is_dir():
        raise BrokenAdapter("There is no adapter directory.", got=adapter_dir)
    whole = hashlib.sha256()
    files = sorted(_files(adapter_dir), key=lambda path: path.relative_to(adapter_dir).as_posix())
    if not files:
        raise BrokenAdapter("The adapter directory is empty.", got=adapter_dir)
    for path in files:
        name = path.relative_to(adapter_dir).as_posix()
        whole.update(hashlib.sha256(name.encode()).digest())
        with path.open("rb") as content:
            whole.update(hashlib.file_digest(content, "sha256").digest())
    return whole.hexdigest()


def check(adapter_dir: Path, expected_sha256: str | None = None) -> str:
    """Make sure that a PEFT adapter directory is complete and readable, without loading it.

    The safetensors header is read and compared with the size of the file, which finds a truncated one.

    Args:
        adapter_dir: holds `adapter_config.json` and `adapter_model.safetensors`.
        expected_sha256: what `digest` has to be, or None.

    Returns:
        The digest.

    Raises:
        BrokenAdapter: says which file is wrong and why.
    """
    found = digest(adapter_dir)
    if expected_sha256 is not None and found != expected_sha256:
        raise BrokenAdapter(
            "The adapter is not the one that was registered: its sha256 differs.",
            got=f"{found} in {adapter_dir}",
            allowed=expected_sha256,
            next_step="train the candidate again; the champion is unchanged (`palate status`)",
        )
    _check_config(adapter_dir / CONFIG_FILE)
    _check_weights(adapter_dir / WEIGHTS_FILE)
    return found


def _files(adapter_dir: Path) -> list[Path]:
    found = []
    for folder, _, names in os.walk(adapter_dir):
        for name in names:
            path = Path(folder) / name
            # A link may point anywhere tomorrow: what it names today identifies nothing.
            if path.is_symlink():
                raise BrokenAdapter("An adapter may not contain links.", got=path)
            found.append(path)
    return found


def _check_config(path: Path) -> None:
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BrokenAdapter(f"{CONFIG_FILE} cannot be read: {error}", got=path) from error
    if not isinstance(config, dict) or not config.get("peft_type"):
        raise BrokenAdapter(f"{CONFIG_FILE} names no peft_type.", got=path, allowed="a PEFT adapter config")


def _check_weights(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as weights:
            names = list(weights.keys())
    except (OSError, SafetensorError) as error:
        raise BrokenAdapter(f"{WEIGHTS_FILE} cannot be read: {error}", got=path) from error
    if not names:
        raise BrokenAdapter(f"{WEIGHTS_FILE} holds no tensors.", got=path)
