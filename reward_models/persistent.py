"""A mapping that is never changed, and of which a changed copy costs little whatever its size.

A trie over the bits of the keys' hashes (Bagwell 2001, Ideal Hash Trees, without the compressed nodes): a copy with
one more key makes new only the few nodes on the way to it and shares all others. Order of iteration means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_BITS = 5
_MASK = (1 << _BITS) - 1
_FULL = 32
"""A leaf with more keys is divided, while hashes have bits left."""
_ALL_BITS = 60
_ANEW = 8
"""Where one key in so many changes, everything is built anew, which then costs less."""

_Node = dict[Any, Any] | tuple[Any, ...]


class Persistent(Mapping[K, V]):
    """Keys and values that never change. A set of keys has `None` for each value."""

    __slots__ = ("_root", "_size")

    _root: _Node
    _size: int

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        if isinstance(items, Persistent):
            self._root, self._size = items._root, items._size
        else:
            content = dict(items)
            self._root, self._size = _divided(content, 0), len(content)

    def __getitem__(self, key: K) -> V:
        value: V = _leaf(self._root, key)[key]
        return value

    def __contains__(self, key: object) -> bool:
        return key in _leaf(self._root, key)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            if isinstance(node, dict):
                yield from node
            else:
                nodes.extend(node)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Where keys lie depends on this process's hashes.
        return type(self), (dict(self),)

    def and_(self, more: Mapping[K, V]) -> Persistent[K, V]:
        """These keys and values, and those, which replace any of the same key."""
        if not more:
            return self
        if len(more) * _ANEW > self._size:
            return Persistent({**self, **more})
        after: Persistent[K, V] = Persistent(self)
        for key, value in more.items():
            after._size += key not in after
            after._root = _with(after._root, key, value, hash(key), 0)
        return after


def _leaf(node: _Node, key: object) -> dict[Any, Any]:
    """Where a key lies, if it is there."""
    bits = hash(key)
    while not isinstance(node, dict):
        node = node[bits & _MASK]
        bits >>= _BITS
    return node


def _with(node: _Node, key: object, value: object, bits: int, depth: int) -> _Node:
    """The node with one more key; `bits` of its hash are left at this depth."""
    if isinstance(node, dict):
        leaf = {**node, key: value}
        return _divided(leaf, depth) if len(leaf) > _FULL else leaf
    at = bits & _MASK
    return (*node[:at], _with(node[at], key, value, bits >> _BITS, depth + _BITS), *node[at + 1 :])


def _divided(content: dict[Any, Any], depth: int) -> _Node:
    """All of it as a node whose keys agree in the first `depth` bits of their hashes."""
    if len(content) <= _FULL or depth >= _ALL_BITS:
        return content
    parts: tuple[dict[Any, Any], ...] = tuple({} for _ in range(_MASK + 1))
    for key, value in content.items():
        parts[(hash(key) >> depth) & _MASK][key] = value
    return tuple(_divided(part, depth + _BITS) for part in parts)
