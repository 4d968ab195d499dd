"""The prefill engine's end of the wire: takes prompts, and sends pieces of the KV that was computed for them.

    connection   secret proved ──▶ this engine's layout ──▶ a prompt arrives ──▶ busy … busy, ready | refused
                 ──▶ pieces are requested ──▶ … ──▶ the connection ends: the records held for it are released

A connection is one hand-over: if it is lost, on either side, only that hand-over is lost.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import Counter

import numpy as np

from quire.core.connector import TierFailed
from quire.handover.peer import Offer, PrefillJob, PrefillService, PromptRefused
from quire.handover.portable import Piece, Portable, page_sizes
from quire.movers.wire import Gone, Head, Wire, hang_up, welcome
from quire.plan.plan import Plan
from quire.plan.records import Records, Span

FRAME_SECONDS = 5.0
BEAT_SECONDS = 1.0
"""How often it reports that a prompt is still being computed."""
STILL_SECONDS = 10.0
"""After this time without an iteration of the engine's loop it stops reporting: callers take the engine for lost."""
HELD_SECONDS = 30.0
"""Records that are not fetched within this time are released."""
LOOK_SECONDS = 0.05
"""How often it checks whether the caller is still connected."""
PAUSE_SECONDS = 1.0
"""Pause after a connection could not be accepted."""
MOST_CONNECTIONS = 256
"""Callers that have proved the secret."""
MOST_STRANGERS, STRANGER_SECONDS = 64, 1.0
"""Callers that have not proved it yet, and the time that each has for it. One more ends the oldest of them, so that
connections that say nothing cannot keep a peer out."""
MOST_SCOPE_CHARACTERS = 1024
_LOG = logging.getLogger("quire.tiers")


class PeerServer:
    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        plan: Plan,
        fingerprint: str,
        service: PrefillService,
        held_seconds: float = HELD_SECONDS,
    ) -> None:
        """Starts to listen; raises `OSError` if the address is in use."""
        self.counters: Counter[str] = Counter()
        """Prompts asked, refused, offered; pieces fetched, bytes; callers without the secret, gone early or failed."""
        self._secret, self._service, self._held_seconds = secret, service, held_seconds
        self._max_length = plan.max_length
        self._records, self._portable = Records(plan), Portable(plan)
        self._hello: Head = {
            "fingerprint": fingerprint,
            "unit_tokens": plan.reuse_unit_tokens,
            "pages": page_sizes(plan),
            "max_length": plan.max_length,
        }
        self._strangers: dict[socket.socket, None] = {}
        """The oldest first."""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, name="quire-peers", daemon=True).start()

    @property
    def connections(self) -> int:
        return len(self._strangers) + len(self._open)

    def close(self) -> None:
        self._is_closed.set()
        hang_up(self._listener)
        self._listener.close()
        with self._lock:
            for sock in (*self._strangers, *self._open):
                hang_up(sock)

    def _listen(self) -> None:
        """Accepts connections until it is closed: too many open files or threads are a temporary condition."""
        while not self._is_closed.is_set():
            try:
                self._take(self._listener.accept()[0])
            except (OSError, RuntimeError) as error:
                if not self._is_closed.is_set():
                    _LOG.warning("a caller could not be let in: %s; goes on in %g s", error, PAUSE_SECONDS)
                    self._is_closed.wait(PAUSE_SECONDS)

    def _take(self, sock: socket.socket) -> None:
        with self._lock:
            if len(self._strangers) >= MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                hang_up(oldest)
            self._strangers[sock] = None
        try:
            threading.Thread(target=self._serve, args=(sock,), name="quire-peer", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._strangers.pop(sock, None)
            sock.close()
            raise

    def _serve(self, sock: socket.socket) -> None:
        """Serves one connection in a thread, from the first byte to the last."""
        try:
            wire = welcome(sock, self._secret, STRANGER_SECONDS, FRAME_SECONDS)
        except TierFailed as error:
            self.counters["strangers"] += 1
            _LOG.debug("a caller was turned away: %s", error)  # strangers fill no log at the default level
        else:
            with contextlib.suppress(TierFailed):  # the caller has gone, or sent invalid data: both end it
                self._admit(sock)
                wire.send(self._hello)
                self._attend(wire)
        finally:
            with self._lock:
                self._strangers.pop(sock, None)
                self._open.discard(sock)
            sock.close()

    def _admit(self, sock: socket.socket) -> None:
        """A caller that has proved the secret. Raises if too many of them are connected."""
        with self._lock:
            self._strangers.pop(sock, None)
            if len(self._open) >= MOST_CONNECTIONS:
                raise TierFailed(f"{MOST_CONNECTIONS} peers are connected already")
            self._open.add(sock)

    # ── one hand-over ─────────────────────────────────────────────────────

    def _attend(self, wire: Wire) -> None:
        head, data = wire.receive(4 * (self._max_length + 1))
        if problem := self._flaw(head, len(data)):
            self.counters["refused"] += 1
            wire.send({"refused": problem})
            return
        self.counters["asked"] += 1
        prompt = np.frombuffer(data, dtype="<i4").astype(np.int32)
        job = self._service.ask(head["scope"], prompt, float(head["seconds"]))
        try:
            self._wait(wire, job)
            self._hand_out(wire, job)
        except Gone:
            self.counters["left"] += not isinstance(job.answer, Offer)
        except TierFailed as error:
            self.counters["failed"] += 1
            _LOG.info("a hand-over ends: %s", error)
        finally:
            self._service.give_up(job)

    def _flaw(self, head: Head, data_bytes: int) -> str:
        """Why a prompt is not accepted; empty: it is."""
        if head.get("fingerprint") != self._hello["fingerprint"]:
            return "it runs another model, another dtype or another version of Quire"
        scope, seconds, tokens = head.get("scope"), head.get("seconds"), data_bytes // 4 - 1
        if not isinstance(scope, str) or len(scope) > MOST_SCOPE_CHARACTERS:
            return "a scope is a short text"
        if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            return "seconds must be a number above 0"
        if data_bytes % 4 or tokens < 1 or tokens % self._records.unit_tokens:
            return f"{tokens:,} tokens are no whole number of units of {self._records.unit_tokens}"
        return ""

    def _hand_out(self, wire: Wire, job: PrefillJob) -> None:
        offer = job.answer
        assert offer is not None, "it is over"
        if isinstance(offer, PromptRefused):
            self.counters["refused"] += 1
            wire.send({"refused": offer.reason})
            return
        self.counters["offered"] += 1
        wire.send({"ready": offer.tokens})
        end = time.monotonic() + self._held_seconds
        while (left := end - time.monotonic()) > 0:
            head, _ = wire.receive(0, left)
            data = self._fetched(offer, head.get("fetch"))
            self.counters["bytes"] += len(data)
            wire.send({}, data)

    def _wait(self, wire: Wire, job: PrefillJob) -> None:
        beat_at = time.monotonic() + BEAT_SECONDS
        while not job.is_over.wait(LOOK_SECONDS):
            if wire.has_news():
                raise Gone("whoever asked has gone")
            if (now := time.monotonic()) >= beat_at:
                if now - self._service.turned_at < STILL_SECONDS:
                    wire.send({"busy": True})
                beat_at += BEAT_SECONDS

    def _fetched(self, offer: Offer, asked: object) -> memoryview:
        pieces = self._pieces(asked, offer.tokens)
        sizes = [self._portable.piece_bytes(piece) for piece in pieces]
        if sum(sizes) > sum(len(part) for record in offer.records for part in record):
            raise TierFailed(f"{sum(sizes):,} bytes are asked for, more than were offered")
        data, begin = np.zeros(sum(sizes), dtype=np.uint8), 0
        for piece, size in zip(pieces, sizes, strict=True):
            found = sum(
                self._portable.gather(record, spans, piece, data[begin : begin + size])
                for record, spans in self._holding(offer, piece)
            )
            if found != self._portable.units(piece):
                raise TierFailed(f"there are {found} units of {piece}")
            begin += size
        self.counters["fetched"] += len(pieces)
        return data.data

    def _pieces(self, asked: object, tokens: int) -> list[Piece]:
        pieces = [_piece(item) for item in asked] if isinstance(asked, list) else [None]
        if not all(piece and self._portable.has(piece) and piece.end <= tokens for piece in pieces):
            raise TierFailed("pieces are asked for that were not offered")
        return [piece for piece in pieces if piece]

    def _holding(self, offer: Offer, piece: Piece) -> list[tuple[np.ndarray, list[Span]]]:
        """Records that may contain part of a piece, each with its spans."""
        if not self._portable.grows(piece.kind):
            return [(_joined(offer.records[-1]), self._records.at(offer.tokens))]
        unit = self._records.unit_tokens
        units = range(piece.begin // unit, -(-piece.end // unit))
        return [(_joined(offer.records[place]), self._records.in_unit(place)) for place in units]


def _piece(item: object) -> Piece | None:
    match item:
        case [str(kind), int(begin), int(end)]:
            return Piece(kind, begin, end)
    return None


def _joined(parts: tuple[memoryview, ...]) -> np.ndarray:
    arrays = [np.frombuffer(part, dtype=np.uint8) for part in parts]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
