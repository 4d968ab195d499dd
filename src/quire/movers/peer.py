"""The decode engine's end of the wire: sends prompts, and reads the KV that another engine computed for them.

    ask ──▶ a connection per prompt, until the other side is ready ──▶ its records have names here, as in any tier
    read ──▶ pieces over that connection, put into this engine's own pages and ranks

A lookup sends nothing: records that have a name here were offered, and may still be lost when they are read.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quire.core.connector import Layout, TierFailed
from quire.core.request import Tokens
from quire.handover.peer import PromptReady, PromptRefused
from quire.handover.portable import Portable, common_boundary, lacking, pieces_of
from quire.movers.wire import Gone, Wire, greet, hang_up
from quire.plan.plan import Plan
from quire.plan.records import Records, Span, boundary_name, size_bytes, unit_name

CONNECT_SECONDS, FRAME_SECONDS = 1.0, 5.0


@dataclass(frozen=True, slots=True)
class Theirs:
    """What the other side reports about itself."""

    unit_tokens: int
    pages: Mapping[str, Sequence[int]]
    max_length: int


@dataclass(slots=True, eq=False)
class Handed:
    """The hand-over of one prompt, from sending it until its records are no longer read."""

    request: str
    socket: socket.socket | None = None
    wire: Wire | None = None
    spans: dict[bytes, list[Span]] = field(default_factory=dict)
    """By record: where its bytes belong in this engine's pages."""
    is_released: bool = False
    in_use: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that uses the connection."""

    def close_if_released(self) -> None:
        """Called by the last user of the connection."""
        if self.is_released and self.socket is not None and self.in_use.acquire(blocking=False):
            self.socket.close()
            self.in_use.release()


class PeerSource:
    brings_only = True

    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        plan: Plan,
        fingerprint: str,
        frame_seconds: float = FRAME_SECONDS,
    ) -> None:
        self.name = "peer"
        self._address, self._secret, self._fingerprint, self._seconds = address, secret, fingerprint, frame_seconds
        self._plan, self._records, self._portable = plan, Records(plan), Portable(plan)
        self._theirs: Theirs | None = None
        self._lock = threading.Lock()
        self._handed: dict[str, Handed] = {}
        """By request."""
        self._named: dict[bytes, list[Handed]] = {}

    def __len__(self) -> int:
        return len(self._handed)

    # ── the connector ─────────────────────────────────────────────────────

    def register(self, layout: Layout) -> None:
        """Checks that the other side can be reached, knows the secret and runs the same model."""
        del layout  # what is exchanged does not depend on pages
        with self._connected() as sock:
            self._greeted(sock)

    def has(self, names: Sequence[bytes]) -> list[bool]:
        with self._lock:
            return [name in self._named for name in names]

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        with self._lock:
            handed = next(iter(self._named.get(name, ())), None)
        if handed is None:
            return False
        try:
            with handed.in_use:
                return not handed.is_released and self._read(handed, handed.spans[name], parts)
        finally:
            handed.close_if_released()

    def _read(self, handed: Handed, spans: list[Span], parts: Sequence[memoryview]) -> bool:
        """A connection that failed is not read again: a late answer would be taken for the answer to the next question.
        A connection that has ended loses only its own offer."""
        try:
            self._fetch(handed, spans, parts)
        except Exception as error:
            was_released = handed.is_released
            self._let_go(handed)
            if was_released or isinstance(error, Gone):
                return False
            raise
        return True

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        del name, parts
        raise TierFailed("a peer takes nothing")

    def drop(self, name: bytes) -> None:
        del name
        raise TierFailed("what a peer offers is not ours to drop")

    def close(self) -> None:
        for request in list(self._handed):
            self.release(request)

    # ── handing over ──────────────────────────────────────────────────────

    def boundary(self, prompt_tokens: int) -> int:
        theirs = self._theirs
        if theirs is None:
            return 0
        most = min(prompt_tokens - 1, theirs.max_length - 2)  # the other side computes one token more and samples one
        return common_boundary(self._plan, theirs.unit_tokens, theirs.pages, most)

    def lacking(self, prompt_tokens: int) -> str:
        theirs, unit = self._theirs, self._records.unit_tokens
        return "" if theirs is None else lacking(self._plan, theirs.pages, prompt_tokens // unit * unit)

    def ask(
        self, request: str, scope: str, prompt: Tokens, keys: Sequence[bytes], seconds: float
    ) -> PromptReady | PromptRefused:
        handed = Handed(request)
        with self._lock:
            self._handed[request] = handed
        try:
            with handed.in_use:
                answer = self._ask(handed, scope, prompt, keys, time.monotonic() + seconds)
        except TierFailed:
            if not handed.is_released:
                self._let_go(handed)
                raise
            answer = PromptRefused("its request has ended")
        if isinstance(answer, PromptRefused):
            self._let_go(handed)
        handed.close_if_released()
        return answer

    def _ask(
        self, handed: Handed, scope: str, prompt: Tokens, keys: Sequence[bytes], end: float
    ) -> PromptReady | PromptRefused:
        handed.socket = self._connected()
        handed.wire = wire = self._greeted(handed.socket)
        tokens = self.boundary(len(prompt))
        if not tokens or handed.is_released:
            return PromptRefused("no part of it can be handed over")
        data = np.ascontiguousarray(prompt[: tokens + 1], dtype="<i4").tobytes()
        wire.send({"fingerprint": self._fingerprint, "scope": scope, "seconds": end - time.monotonic()}, data)
        answer = self._answer(wire, tokens, end)
        if isinstance(answer, PromptReady):
            self._name(handed, keys[: tokens // self._records.unit_tokens])
        return answer

    @staticmethod
    def _answer(wire: Wire, tokens: int, end: float) -> PromptReady | PromptRefused:
        """Waits for the other side's answer."""
        while True:
            head, _ = wire.receive()
            match head:
                case {"ready": ready} if ready == tokens:
                    return PromptReady()
                case {"refused": str(reason)}:
                    return PromptRefused(reason or "it was refused")
                case {"busy": True}:
                    if time.monotonic() >= end:
                        return PromptRefused("the other side is too busy")
                case _:
                    raise TierFailed("an answer that is none")

    def _name(self, handed: Handed, keys: Sequence[bytes]) -> None:
        if self._records.has_units:
            handed.spans = {unit_name(key): self._records.in_unit(unit) for unit, key in enumerate(keys)}
        if self._records.has_boundaries:
            handed.spans[boundary_name(keys[-1])] = self._records.at(len(keys) * self._records.unit_tokens)
        with self._lock:
            for name in handed.spans if not handed.is_released else ():
                self._named.setdefault(name, []).append(handed)

    def release(self, request: str) -> None:
        handed = self._handed.get(request)
        if handed is not None:
            self._let_go(handed)

    def _let_go(self, handed: Handed) -> None:
        with self._lock:
            if self._handed.get(handed.request) is handed:
                del self._handed[handed.request]
            handed.is_released = True
            for name in handed.spans:
                if handed in (known := self._named.get(name, [])):
                    known.remove(handed)
                if not known:
                    self._named.pop(name, None)
        if handed.socket is not None:
            hang_up(handed.socket)
        handed.close_if_released()

    # ── over the wire ─────────────────────────────────────────────────────

    def _connected(self) -> socket.socket:
        host, port = self._address
        try:
            return socket.create_connection(self._address, CONNECT_SECONDS)
        except OSError as error:
            raise TierFailed(f"{host}:{port} cannot be reached: {error.strerror or error}") from error

    def _greeted(self, sock: socket.socket) -> Wire:
        wire = greet(sock, self._secret, self._seconds)
        head, _ = wire.receive()
        match head:
            case {"fingerprint": str(known), "unit_tokens": int(unit), "pages": dict(pages), "max_length": int(most)}:
                if known != self._fingerprint:
                    raise TierFailed("it runs another model, another dtype or another version of Quire")
                self._theirs = Theirs(unit, pages, most)
                return wire
        raise TierFailed("it does not say what it runs")

    def _fetch(self, handed: Handed, spans: list[Span], parts: Sequence[memoryview]) -> None:
        assert handed.wire is not None, "what has a name was offered over a connection"
        pieces = pieces_of(spans)
        sizes = [self._portable.piece_bytes(piece) for piece in pieces]
        handed.wire.send({"fetch": [[piece.kind, piece.begin, piece.end] for piece in pieces]})
        _, data = handed.wire.receive(sum(sizes))
        if len(data) != sum(sizes):
            raise TierFailed(f"{len(data):,} bytes came instead of {sum(sizes):,}")
        record, begin = np.zeros(size_bytes(spans), dtype=np.uint8), 0
        for piece, size in zip(pieces, sizes, strict=True):
            self._portable.scatter(record, spans, piece, np.frombuffer(data[begin : begin + size], dtype=np.uint8))
            begin += size
        begin = 0
        for part in parts:
            part[:] = record[begin : begin + len(part)].data
            begin += len(part)
