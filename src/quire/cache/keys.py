"""Names for prefixes: a chain of SHA-256 digests, one per unit of tokens, that starts with who may share them.

    root, unit ──tokens[0:64]──▶ key 0 ──tokens[64:128]──▶ key 1 ──▶ …

    key = 8 bytes that all keys of a scope have in common ┃ 24 bytes of the digest

Equal keys mean equal model, layout, dtype, scope and tokens from the first one on. One hash runs along the chain, and a
key is what it says behind a unit: whoever goes on later goes on from a copy of that hash, not from the key.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Protocol

import numpy as np

from quire.core.request import Tokens
from quire.core.tier import SCOPE_BYTES

DIGEST_BYTES = 32 - SCOPE_BYTES


@lru_cache(maxsize=1024)
def root_key(fields: tuple[str, ...]) -> bytes:
    """Over typed, length-prefixed fields, so that no two lists of fields can run into each other."""
    digest = hashlib.sha256(b"quire-prefix/2")
    for field in fields:
        data = field.encode()
        digest.update(b"s" + len(data).to_bytes(8, "little") + data)
    return digest.digest()


class Hash(Protocol):
    """A hash behind some tokens. Never goes on itself: copies of it do."""

    def copy(self) -> Hash: ...

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


def root_hash(root: bytes, unit: int) -> Hash:
    """The hash before the first token."""
    return hashlib.sha256(root + unit.to_bytes(8, "little"))


def scope_of(root: bytes) -> bytes:
    """What all keys behind a root begin with."""
    return root[:SCOPE_BYTES]


def extend(behind: Hash, scope: bytes, tokens: Tokens, unit: int) -> tuple[list[bytes], Hash]:
    """Keys of all whole units of `tokens`, which follow those that `behind` has seen; and the hash behind them."""
    size = len(tokens) // unit * unit
    units = np.ascontiguousarray(tokens[:size], dtype="<i4").view(f"V{4 * unit}").tolist()
    behind = behind.copy()
    update, digest = behind.update, behind.digest
    return [update(data) or scope + digest()[:DIGEST_BYTES] for data in units], behind


def keys_of(root: bytes, tokens: Tokens, unit: int) -> list[bytes]:
    """Keys of all whole units of `tokens`, from the first one on."""
    return extend(root_hash(root, unit), scope_of(root), tokens, unit)[0]


def end_key(key: bytes, tokens: Tokens) -> bytes:
    """Of a turn that ended between two units, a few tokens behind the prefix that `key` names."""
    digest = hashlib.sha256(key + b"end" + np.ascontiguousarray(tokens, dtype="<i4").tobytes()).digest()
    return scope_of(key) + digest[:DIGEST_BYTES]
