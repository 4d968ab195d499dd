"""The format of a record outside this process: a header with its layout, name and digest, then its bytes.

magic 8 │ layout 32 │ name length 2 │ data length 8 │ digest 32 │ name │ data

The digest is the SHA-256 of the data, which reveals damage. With a secret it is the HMAC-SHA-256 of everything else in
the record, which also proves that a holder of the secret wrote it, under this name.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.core.connector import Layout

MAGIC = b"QUIREREC"
_FIXED = struct.Struct("<8s32sHQ32s")


@dataclass(frozen=True, slots=True)
class Header:
    layout: bytes
    name: bytes
    data_bytes: int
    digest: bytes

    def encode(self) -> bytes:
        return _FIXED.pack(MAGIC, self.layout, len(self.name), self.data_bytes, self.digest) + self.name


def layout_digest(layout: Layout) -> bytes:
    return hashlib.sha256(layout.fingerprint.encode()).digest()


def header_bytes(name: bytes) -> int:
    return _FIXED.size + len(name)


def header_of(layout: Layout, name: bytes, parts: Sequence[memoryview], secret: bytes = b"") -> Header:
    header = Header(layout_digest(layout), name, sum(map(len, parts)), bytes(32))
    return replace(header, digest=_digest(header, parts, secret))


def decode(data: bytes) -> Header | None:
    """None: these bytes are not a header of this format."""
    if len(data) < _FIXED.size:
        return None
    magic, layout, name_bytes, data_bytes, digest = _FIXED.unpack_from(data)
    name = data[_FIXED.size : _FIXED.size + name_bytes]
    return Header(layout, name, data_bytes, digest) if magic == MAGIC and len(name) == name_bytes else None


def _digest(header: Header, parts: Sequence[memoryview], secret: bytes) -> bytes:
    begin = replace(header, digest=bytes(32)).encode()
    digest = hmac.new(secret, b"quire-record/1 " + begin, hashlib.sha256) if secret else hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def is_as_written(header: Header, parts: Sequence[memoryview], secret: bytes = b"") -> bool:
    """Whether the bytes are those that were written; with a secret, by one of its holders."""
    return hmac.compare_digest(_digest(header, parts, secret), header.digest)


def flaw(header: Header | None, layout: Layout, name: bytes, size_bytes: int) -> str:
    """Why the bytes after the header are not the requested record; empty: only the digest is left to compare."""
    if header is None:
        return "it does not begin like a record"
    if header.layout != layout_digest(layout):
        return "it is of another model or layout"
    if header.name != name:
        return "it is another record"
    if header.data_bytes != size_bytes:
        return f"it has {header.data_bytes:,} bytes instead of {size_bytes:,}"
    return ""
