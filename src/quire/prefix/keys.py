"""Keys of prefixes: a chain of SHA-256 digests, one per unit of tokens, that starts with layout and scope.

    root, unit ──tokens[0:64]──▶ key 0 ──tokens[64:128]──▶ key 1 ──▶ …

    key = 8 bytes that all keys of a scope have in common ┃ 24 bytes of the digest

Equal keys mean equal model, layout, dtype, scope and tokens from the first one on. One hash runs along the chain, and a
key is its digest after a unit. Further keys are computed from a copy of the hash, not from the last key.
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
    """Hashes typed, length-prefixed fields, so that different lists of fields never give the same input."""
    digest = hashlib.sha256(b"quire-prefix/2")
    for field in fields:
        data = field.encode()
        digest.update(b"s" + len(data).to_bytes(8, "little") + data)
    return digest.digest()


class Hash(Protocol):
    """The state of a hash after some tokens. Only copies of it are updated."""

    def copy(self) -> Hash: ...

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


def root_hash(root: bytes, unit: int) -> Hash:
    """The hash before the first token."""
    return hashlib.sha256(root + unit.to_bytes(8, "little"))


def scope_of(root: bytes) -> bytes:
    """The bytes that all keys under a root begin with."""
    return root[:SCOPE_BYTES]


def extend(behind: Hash, scope: bytes, tokens: Tokens, unit: int) -> tuple[list[bytes], Hash]:
    """Keys of all whole units of `tokens`, which follow the tokens hashed in `behind`; and the hash after them."""
    size = len(tokens) // unit * unit
    units = np.ascontiguousarray(tokens[:size], dtype="<i4").view(f"V{4 * unit}").tolist()
    behind = behind.copy()
    update, digest = behind.update, behind.digest
    return [update(data) or scope + digest()[:DIGEST_BYTES] for data in units], behind


def keys_of(root: bytes, tokens: Tokens, unit: int) -> list[bytes]:
    """Keys of all whole units of `tokens`, from the first one on."""
    return extend(root_hash(root, unit), scope_of(root), tokens, unit)[0]


def end_key(key: bytes, tokens: Tokens) -> bytes:
    """The key of a turn that ended between two units, `tokens` after the prefix that `key` names."""
    digest = hashlib.sha256(key + b"end" + np.ascontiguousarray(tokens, dtype="<i4").tobytes()).digest()
    return scope_of(key) + digest[:DIGEST_BYTES]
