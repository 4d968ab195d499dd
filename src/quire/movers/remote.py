"""Records in a Redis or Valkey server, shared by every engine that knows the address.

    quire:1:<layout>:<name>  ──▶  header and bytes, as in a file

Records may be evicted at any moment, by the server's own policy (`maxmemory-policy allkeys-lru` is suitable). Lookups
have a separate short timeout, because they are made between steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from quire.core.connector import Layout, TierFailed
from quire.core.errors import InputError
from quire.movers.frame import decode, flaw, header_bytes, header_of, is_as_written
from quire.options.extras import naming_extras

SCHEMES = ("redis", "rediss", "unix")
LOOKUP_SECONDS, TRANSFER_SECONDS, CONNECT_SECONDS = 0.1, 5.0, 1.0
SCAN_COUNT = 1000
"""Keys that the server examines per scan call."""
Answer = TypeVar("Answer")
_LOG = logging.getLogger("quire.tiers")


class RemoteStore:
    def __init__(
        self,
        url: str,
        secret: bytes = b"",
        *,
        lookup_seconds: float = LOOKUP_SECONDS,
        transfer_seconds: float = TRANSFER_SECONDS,
    ) -> None:
        """`url`: redis://[user:password@]host:port/db, rediss:// for TLS, unix:///path; options as redis-py has."""
        self.name = "remote"
        self.address = _without_password(url)
        self._url, self._secret = url, secret
        self._seconds = (lookup_seconds, transfer_seconds)
        self._lookups, self._transfers = self._client(lookup_seconds), self._client(transfer_seconds)

    def _client(self, seconds: float) -> Any:
        with naming_extras("a remote tier"):
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        try:
            return redis.Redis.from_url(
                self._url,
                socket_timeout=seconds,
                socket_connect_timeout=min(seconds, CONNECT_SECONDS),
                retry=Retry(NoBackoff(), 0),
            )
        except (ValueError, TypeError) as error:
            raise InputError(f"{self.address} is no address of a server: {error}") from error

    def _ask(self, what: str, question: Callable[[], Answer]) -> Answer:
        """Every exception that the client raises for a broken server becomes a failure of the tier."""
        try:
            return question()
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise TierFailed(f"{self.address} cannot {what}: {type(error).__name__}: {reason}") from error

    def _key(self, name: bytes) -> str:
        return f"quire:1:{self._layout.fingerprint[:32]}:{name.hex()}"

    # ── the connector ─────────────────────────────────────────────────────

    def register(self, layout: Layout) -> None:
        self._layout = layout
        self._ask("be reached", self._lookups.ping)

    def has(self, names: Sequence[bytes]) -> list[bool]:
        if not names:
            return []
        pipeline = self._lookups.pipeline(transaction=False)
        for name in names:
            pipeline.exists(self._key(name))
        return [bool(found) for found in self._ask("look up", pipeline.execute)]

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        data = b"".join([header_of(self._layout, name, parts, self._secret).encode(), *parts])
        self._ask("store", lambda: self._transfers.set(self._key(name), data))

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        """Reads at most one byte more than the record has: something foreign may be of any size."""
        pipeline = self._transfers.pipeline(transaction=False)
        pipeline.exists(self._key(name)).getrange(self._key(name), 0, header_bytes(name) + sum(map(len, parts)))
        is_there, data = self._ask("load", pipeline.execute)
        if not is_there:
            return False
        problem = self._flaw(name, data, parts)
        if problem:
            _LOG.warning("remote: %s is dropped: %s", self._key(name), problem)
            self.drop(name)
        return not problem

    def _flaw(self, name: bytes, data: object, parts: Sequence[memoryview]) -> str:
        """Copies the bytes into their parts, and returns what is wrong with them; empty: nothing."""
        if not isinstance(data, bytes):
            return "it is not a string of bytes"
        header, begin = decode(data[: header_bytes(name)]), header_bytes(name)
        problem = flaw(header, self._layout, name, sum(map(len, parts)))
        if problem or header is None or len(data) != begin + header.data_bytes:
            return problem or "its length is not that of a record"
        for part in parts:
            part[:] = memoryview(data)[begin : begin + len(part)]
            begin += len(part)
        return "" if is_as_written(header, parts, self._secret) else "its bytes are not those that were written"

    def drop(self, name: bytes) -> None:
        self._ask("forget", lambda: self._transfers.delete(self._key(name)))

    def forget(self, scope: bytes) -> None:
        pattern = f"quire:1:{self._layout.fingerprint[:32]}:??{scope.hex()}*"
        self._ask("forget", lambda: [self._transfers.unlink(key) for key in self._scanned(pattern)])

    def _scanned(self, pattern: str) -> Iterator[Any]:
        yield from self._transfers.scan_iter(match=pattern, count=SCAN_COUNT)

    def close(self) -> None:
        self._lookups.close()
        self._transfers.close()


def _without_password(url: str) -> str:
    """A URL that cannot be parsed is not repeated: any part of it may be the password."""
    try:
        parts = urlsplit(url)
        place = parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError as error:
        form = "redis://user:password@host:port/db, with / and @ in a password as %2F and %40"
        raise InputError(f"the address of the server cannot be read: write {form}") from error
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        scheme = f"that begins with {parts.scheme}:" if parts.scheme else "without a scheme"
        raise InputError(f"an address {scheme} is no server's: begin with {known}")
    return f"{parts.scheme}://{place}"
