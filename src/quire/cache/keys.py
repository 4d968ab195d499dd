"""Names for prefixes: a chain of SHA-256 digests, one per unit of tokens, that starts with who may share them.

    root ──tokens[0:64]──▶ key 0 ──tokens[64:128]──▶ key 1 ──▶ …

Equal keys mean equal model, layout, dtype, scope and tokens from the first one on.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from quire.core.request import Tokens


@lru_cache(maxsize=1024)
def root_key(fields: tuple[str, ...]) -> bytes:
    """Over typed, length-prefixed fields, so that no two lists of fields can run into each other."""
    digest = hashlib.sha256(b"quire-prefix/1")
    for field in fields:
        data = field.encode()
        digest.update(b"s" + len(data).to_bytes(8, "little") + data)
    return digest.digest()


def extend(key: bytes, tokens: Tokens, unit: int) -> list[bytes]:
    """Keys of all whole units of `tokens`, which follow the prefix that `key` names."""
    data, size, sha256 = np.ascontiguousarray(tokens, dtype="<i4").tobytes(), 4 * unit, hashlib.sha256
    begins = range(0, len(data) - size + 1, size)
    return [key := sha256(key + data[begin : begin + size]).digest() for begin in begins]


def end_key(key: bytes, tokens: Tokens) -> bytes:
    """Of a turn that ended between two units, a few tokens behind the prefix that `key` names."""
    return hashlib.sha256(key + b"end" + np.ascontiguousarray(tokens, dtype="<i4").tobytes()).digest()
