"""Names that only holders of a secret can compute, for stores that others can list.

    name      kind 1 │ scope 8               │ digest 24
    outside   kind 1 │ HMAC of the scope, 8  │ HMAC of the name, 24

A name is a hash of a prompt's tokens: without a secret, a reader of names can test whether a guessed prompt was sent.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from quire.core.connector import Connector, Forgets, Layout
from quire.core.tier import SCOPE_BYTES

DIGEST_BYTES = 24


class HiddenNames:
    """A connector under hidden names."""

    def __init__(self, connector: Connector, secret: bytes) -> None:
        self._connector, self._secret = connector, secret
        self.name = connector.name

    def _digest(self, purpose: bytes, data: bytes) -> bytes:
        return hmac.digest(self._secret, b"quire-names/1 " + purpose + data, hashlib.sha256)

    def _scope(self, scope: bytes) -> bytes:
        return self._digest(b"scope ", scope)[:SCOPE_BYTES]

    def _hidden(self, name: bytes) -> bytes:
        return name[:1] + self._scope(name[1 : 1 + SCOPE_BYTES]) + self._digest(b"name ", name)[:DIGEST_BYTES]

    def register(self, layout: Layout) -> None:
        self._connector.register(layout)

    def has(self, names: Sequence[bytes]) -> list[bool]:
        return self._connector.has([self._hidden(name) for name in names])

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        self._connector.write(self._hidden(name), parts)

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        return self._connector.read(self._hidden(name), parts)

    def drop(self, name: bytes) -> None:
        self._connector.drop(self._hidden(name))

    def close(self) -> None:
        self._connector.close()


class HiddenForgetfulNames(HiddenNames):
    """The same for a connector that can drop a scope."""

    def forget(self, scope: bytes) -> None:
        assert isinstance(self._connector, Forgets), "hidden() has looked"
        self._connector.forget(self._scope(scope) if scope else b"")


def hidden(connector: Connector, secret: bytes) -> Connector:
    """The connector itself if there is no secret, or if it only brings records, which others have named."""
    if not secret or getattr(connector, "brings_only", False):
        return connector
    return (HiddenForgetfulNames if isinstance(connector, Forgets) else HiddenNames)(connector, secret)
