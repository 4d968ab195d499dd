"""The prefill engine's end of the wire: takes prompts, and hands out pieces of what was computed for them.

    connection   secret proved ──▶ this engine's layout ──▶ a prompt comes ──▶ busy … busy, ready | refused
                 ──▶ pieces are asked for ──▶ … ──▶ the connection ends: what was held for it is let go

A connection is one hand-over: whoever loses it, on whichever side, has lost that and nothing else.
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
from quire.core.peer import Desk, Errand, Offer
from quire.handover.portable import Piece, Portable, page_sizes
from quire.movers.wire import Gone, Head, Wire, hang_up, welcome
from quire.plan.plan import Plan
from quire.plan.records import Records, Span

FRAME_SECONDS = 5.0
BEAT_SECONDS = 1.0
"""How often it says that a prompt is still being computed."""
STILL_SECONDS = 10.0
"""An engine whose loop has not turned for so long says so no more: whoever waits for it takes it for lost."""
HELD_SECONDS = 30.0
"""What nobody has fetched by then is let go."""
LOOK_SECONDS = 0.05
"""How often it looks whether whoever asked is still there."""
PAUSE_SECONDS = 1.0
"""After a caller could not be let in."""
MOST_CONNECTIONS = 256
MOST_SCOPE_CHARACTERS = 1024
_LOG = logging.getLogger("quire.tiers")


class PeerServer:
    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        plan: Plan,
        fingerprint: str,
        desk: Desk,
        held_seconds: float = HELD_SECONDS,
    ) -> None:
        """Listens from now on; an address that is taken is an `OSError`."""
        self.counters: Counter[str] = Counter()
        """Prompts asked, refused, offered; pieces fetched, bytes; callers that were strangers, left early or failed."""
        self._secret, self._desk, self._held_seconds = secret, desk, held_seconds
        self._max_length = plan.max_length
        self._records, self._portable = Records(plan), Portable(plan)
        self._hello: Head = {
            "fingerprint": fingerprint,
            "unit_tokens": plan.reuse_unit_tokens,
            "pages": page_sizes(plan),
            "max_length": plan.max_length,
        }
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, name="quire-peers", daemon=True).start()

    @property
    def connections(self) -> int:
        return len(self._open)

    def close(self) -> None:
        self._is_closed.set()
        hang_up(self._listener)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                hang_up(sock)

    def _listen(self) -> None:
        """Until it is closed: too many open files or threads pass."""
        while not self._is_closed.is_set():
            try:
                self._take(self._listener.accept()[0])
            except (OSError, RuntimeError) as error:
                if not self._is_closed.is_set():
                    _LOG.warning("a caller could not be let in: %s; goes on in %g s", error, PAUSE_SECONDS)
                    self._is_closed.wait(PAUSE_SECONDS)

    def _take(self, sock: socket.socket) -> None:
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS:
                sock.close()
                return
            self._open.add(sock)
        try:
            threading.Thread(target=self._serve, args=(sock,), name="quire-peer", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._open.discard(sock)
            sock.close()
            raise

    def _serve(self, sock: socket.socket) -> None:
        """In a thread, from the first byte to the last."""
        try:
            wire = welcome(sock, self._secret, FRAME_SECONDS)
        except TierFailed as error:
            self.counters["strangers"] += 1
            _LOG.info("a caller was turned away: %s", error)
        else:
            with contextlib.suppress(TierFailed):  # they have gone, or sent nonsense: either ends it
                wire.send(self._hello)
                self._attend(wire)
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()

    # ── one hand-over ─────────────────────────────────────────────────────

    def _attend(self, wire: Wire) -> None:
        head, data = wire.receive(4 * (self._max_length + 1))
        if problem := self._flaw(head, len(data)):
            self.counters["refused"] += 1
            wire.send({"refused": problem})
            return
        self.counters["asked"] += 1
        prompt = np.frombuffer(data, dtype="<i4").astype(np.int32)
        errand = self._desk.ask(head["scope"], prompt, float(head["seconds"]))
        try:
            self._wait(wire, errand)
            self._hand_out(wire, errand)
        except Gone:
            self.counters["left"] += errand.offer is None
        except TierFailed as error:
            self.counters["failed"] += 1
            _LOG.info("a hand-over ends: %s", error)
        finally:
            self._desk.give_up(errand)

    def _flaw(self, head: Head, data_bytes: int) -> str:
        """Why an order is not taken; empty: it is."""
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

    def _hand_out(self, wire: Wire, errand: Errand) -> None:
        if errand.offer is None:
            self.counters["refused"] += 1
            wire.send({"refused": errand.reason})
            return
        self.counters["offered"] += 1
        wire.send({"ready": errand.offer.tokens})
        end = time.monotonic() + self._held_seconds
        while (left := end - time.monotonic()) > 0:
            head, _ = wire.receive(0, left)
            data = self._fetched(errand.offer, head.get("fetch"))
            self.counters["bytes"] += len(data)
            wire.send({}, data)

    def _wait(self, wire: Wire, errand: Errand) -> None:
        beat_at = time.monotonic() + BEAT_SECONDS
        while not errand.is_over.wait(LOOK_SECONDS):
            if wire.has_news():
                raise Gone("whoever asked has gone")
            if (now := time.monotonic()) >= beat_at:
                if now - self._desk.turned_at < STILL_SECONDS:
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
        """Records that may have some of a piece, each with what lies in it."""
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
