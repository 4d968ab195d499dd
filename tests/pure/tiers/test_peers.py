"""Both ends of the wire of a hand-over: orders that make no sense, peers that leave, dawdle, lie or are full."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from quire.core.connector import TierFailed
from quire.core.request import Tokens
from quire.handover.peer import Offer, PrefillJob, PromptReady, PromptRefused
from quire.movers import offering
from quire.movers.offering import PeerServer
from quire.movers.peer import PeerSource
from quire.movers.wire import Wire, greet
from quire.plan.records import Records, size_bytes
from quire.tiers.guarded import GuardedTier
from scenes_of_tiers import LAYOUT, small_plan, until

SECRET, PRINT = b"known to two of us", "f" * 64
READY = PromptReady()
PLAN = small_plan(["full", "window"])
UNIT = PLAN.reuse_unit_tokens
PROMPT = np.arange(8 * UNIT + 1, dtype=np.int32)


# ── the prefill engine's end ──────────────────────────────────────────────


class Clerk:
    """A service that computes nothing: what was asked, what was given up, and an offer when the test says so."""

    def __init__(self) -> None:
        self.asked: list[PrefillJob] = []
        self.given_up: list[PrefillJob] = []
        self.is_still = False
        self._answered = 0

    @property
    def turned_at(self) -> float:
        return float("-inf") if self.is_still else time.monotonic()

    def ask(self, scope: str, prompt: Tokens, seconds: float) -> PrefillJob:
        self.asked.append(PrefillJob("peer", scope, prompt, seconds))
        return self.asked[-1]

    def give_up(self, job: PrefillJob) -> None:
        self.given_up.append(job)

    def refuse(self) -> None:
        self._next().answer = PromptRefused("no room")
        self.asked[-1].is_over.set()

    def offer(self) -> None:
        records, tokens = Records(PLAN), len(PROMPT) - 1
        sizes = [records.unit_bytes] * (tokens // UNIT) + [size_bytes(records.at(tokens))]
        self._next().answer = Offer(tokens, tuple((memoryview(bytes([7]) * size),) for size in sizes))
        self.asked[-1].is_over.set()

    def _next(self) -> PrefillJob:
        until(lambda: len(self.asked) > self._answered)
        self._answered = len(self.asked)
        return self.asked[-1]


@pytest.fixture
def clerk() -> Clerk:
    return Clerk()


@pytest.fixture
def server(clerk: Clerk) -> Iterator[PeerServer]:
    running = PeerServer(("127.0.0.1", 0), SECRET, PLAN, PRINT, clerk, held_seconds=0.2)
    yield running
    running.close()
    until(lambda: not running.connections)


def call(server: PeerServer) -> Wire:
    wire = greet(socket.create_connection(("127.0.0.1", server.port)), SECRET, 5)
    assert wire.receive()[0]["unit_tokens"] == UNIT
    return wire


def order(wire: Wire, prompt: np.ndarray = PROMPT, **changed: object) -> None:
    wire.send({"fingerprint": PRINT, "scope": "", "seconds": 5.0, **changed}, prompt.astype("<i4").tobytes())


def ready(server: PeerServer, clerk: Clerk) -> Wire:
    wire = call(server)
    order(wire)
    clerk.offer()
    assert wire.receive()[0] == {"ready": len(PROMPT) - 1}
    return wire


@pytest.mark.parametrize(
    ("changed", "prompt", "said"),
    [
        ({"fingerprint": "0" * 64}, PROMPT, "another model"),
        ({"fingerprint": None}, PROMPT, "another model"),
        ({"scope": 7}, PROMPT, "a scope is a short text"),
        ({"scope": "x" * 2000}, PROMPT, "a scope is a short text"),
        ({"seconds": "soon"}, PROMPT, "above 0"),
        ({"seconds": float("nan")}, PROMPT, "above 0"),
        ({}, PROMPT[:-1], f"no whole number of units of {UNIT}"),
        ({}, PROMPT[:1], f"no whole number of units of {UNIT}"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_before_anything_is_computed(
    server: PeerServer, clerk: Clerk, changed: dict[str, object], prompt: np.ndarray, said: str
) -> None:
    wire = call(server)
    order(wire, prompt, **changed)
    assert said in wire.receive()[0]["refused"]
    assert not clerk.asked
    wire.socket.close()


def test_a_prompt_longer_than_any_that_is_admitted_is_not_even_read(server: PeerServer, clerk: Clerk) -> None:
    wire = call(server)
    with contextlib.suppress(TierFailed):  # the other side may have hung up already
        order(wire, np.arange(PLAN.max_length + UNIT + 1))
    with pytest.raises(TierFailed):
        wire.receive()
    assert not clerk.asked
    wire.socket.close()


@pytest.mark.parametrize(
    "asked",
    [
        None,
        "full",
        [["full", 0]],
        [["full", 0, 1.5]],
        [["full", -8, 8]],
        [["full", 8, 8]],
        [["full", 0, len(PROMPT) + UNIT - 1]],
        [["other", 0, 8]],
        [[["full"], 0, 8]],
        [["window-50", 0, 8]],
        [["full", 0, 64]] * 40,
    ],
)
def test_pieces_that_were_not_offered_end_the_connection_and_the_offer(
    server: PeerServer, clerk: Clerk, asked: object
) -> None:
    wire = ready(server, clerk)
    wire.send({"fetch": [["full", 0, 8], ["window-50", 56, 64]]})
    assert set(bytes(wire.receive(1 << 20)[1])) == {7}
    wire.send({"fetch": asked})
    with pytest.raises(TierFailed):
        wire.receive(1 << 20)
    until(lambda: clerk.given_up == clerk.asked)
    assert server.counters["failed"] == 1
    wire.socket.close()


def test_what_is_held_is_let_go_when_whoever_asked_hangs_up_or_does_not_come(server: PeerServer, clerk: Clerk) -> None:
    ready(server, clerk).socket.close()
    until(lambda: len(clerk.given_up) == 1)
    wire = ready(server, clerk)
    until(lambda: len(clerk.given_up) == 2)  # its time is over
    wire.socket.close()
    call(server).socket.close()
    until(lambda: not server.connections)
    assert len(clerk.asked) == 2


def test_a_prompt_is_given_up_when_whoever_asked_leaves_while_it_is_computed(server: PeerServer, clerk: Clerk) -> None:
    wire = call(server)
    order(wire)
    until(lambda: bool(clerk.asked))
    wire.socket.close()
    until(lambda: clerk.given_up == clerk.asked)
    assert server.counters["left"] == 1


def test_strangers_and_too_many_at_once_are_turned_away(server: PeerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ("127.0.0.1", server.port)
    with socket.create_connection(address) as stranger, pytest.raises(TierFailed):
        greet(stranger, b"another secret", 5)
    until(lambda: server.counters["strangers"] == 1)
    monkeypatch.setattr(offering, "MOST_CONNECTIONS", 1)
    until(lambda: not server.connections)
    first = call(server)
    with socket.create_connection(address) as second, pytest.raises(TierFailed, match="gone"):
        greet(second, SECRET, 5).receive(0)
    first.socket.close()


@pytest.mark.story
@pytest.mark.parametrize(
    ("owner", "method", "error"),
    [
        (socket.socket, "accept", OSError(24, "Too many open files")),
        (threading.Thread, "start", RuntimeError("can't start new thread")),
    ],
)
def test_a_listener_that_cannot_let_a_caller_in_says_so_and_goes_on(
    clerk: Clerk,
    owner: type,
    method: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(offering, "PAUSE_SECONDS", 0.01)
    original, failed = getattr(owner, method), threading.Event()

    def fails_once(itself: object) -> object:
        if not failed.is_set():
            failed.set()
            raise error
        return original(itself)

    with caplog.at_level(logging.WARNING, "quire.tiers"), holding(clerk) as server:
        monkeypatch.setattr(owner, method, fails_once)
        while not failed.wait(0.01):
            socket.create_connection(("127.0.0.1", server.port)).close()
        call(server).socket.close()
    (line,) = caplog.records
    assert "a caller could not be let in" in line.getMessage()


# ── the decode engine's end ───────────────────────────────────────────────


def source(server: PeerServer, fingerprint: str = PRINT, frame_seconds: float = 5.0) -> PeerSource:
    return PeerSource(("127.0.0.1", server.port), SECRET, PLAN, fingerprint, frame_seconds)


KEYS = [bytes([place]) * 32 for place in range(8)]


def test_an_engine_of_another_model_is_not_asked(server: PeerServer) -> None:
    with pytest.raises(TierFailed, match="another model, another dtype or another version"):
        source(server, "0" * 64).register(LAYOUT)


def test_what_was_offered_is_found_and_read_until_it_is_released(server: PeerServer, clerk: Clerk) -> None:
    peer, records = source(server), Records(PLAN)
    assert peer.boundary(100) == 0, "nothing is known of the other side yet"
    peer.register(LAYOUT)
    assert peer.boundary(len(PROMPT)) == 8 * UNIT
    threading.Thread(target=clerk.offer).start()
    assert peer.ask("request", "tenant", PROMPT, KEYS, 5.0) == READY
    assert clerk.asked[0].scope == "tenant"
    assert np.array_equal(clerk.asked[0].prompt, PROMPT)
    names = [b"u" + KEYS[3], b"b" + KEYS[7], b"b" + KEYS[6], b"u" + bytes(32)[:-1]]
    assert peer.has(names) == [True, True, False, False]
    back = bytearray(records.unit_bytes)
    assert peer.read(names[0], [memoryview(back)[:100], memoryview(back)[100:]])
    assert set(back) <= {7, 0}
    assert back.count(7) == Records(PLAN).unit_tokens * PLAN.stages[0].kinds[0].unit_bytes
    peer.release("request")
    assert peer.has(names) == [False] * 4
    assert not peer.read(names[0], [memoryview(back)])
    until(lambda: clerk.given_up == clerk.asked)


def test_an_engine_that_refuses_or_is_gone_leaves_nothing_behind(server: PeerServer, clerk: Clerk) -> None:
    peer = source(server)
    peer.register(LAYOUT)
    refusing = threading.Thread(target=clerk.refuse)
    refusing.start()
    assert peer.ask("one", "", PROMPT, KEYS, 5.0) == PromptRefused("no room")
    refusing.join()
    assert not len(peer)
    server.close()
    with pytest.raises(TierFailed, match="cannot be reached"):
        peer.ask("two", "", PROMPT, KEYS, 5.0)
    assert not len(peer)


def test_a_peer_that_falls_silent_is_lost_and_one_that_says_it_is_busy_is_not(
    server: PeerServer, clerk: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames may take 0.3 s: a beat comes every 0.05 s, then none."""
    monkeypatch.setattr(offering, "BEAT_SECONDS", 0.05)
    peer = source(server, frame_seconds=0.3)
    peer.register(LAYOUT)
    assert peer.ask("busy", "", PROMPT, KEYS, seconds=1.0) == PromptRefused("the other side is too busy")
    monkeypatch.setattr(offering, "BEAT_SECONDS", 1000.0)
    with pytest.raises(TierFailed, match="no answer in time"):
        peer.ask("silent", "", PROMPT, KEYS, seconds=1.0)
    until(lambda: clerk.given_up == clerk.asked)
    assert not len(peer)


@contextlib.contextmanager
def holding(clerk: Clerk, seconds: float = 30.0) -> Iterator[PeerServer]:
    """A server that gives what was offered time."""
    running = PeerServer(("127.0.0.1", 0), SECRET, PLAN, PRINT, clerk, held_seconds=seconds)
    try:
        yield running
    finally:
        running.close()
        until(lambda: not running.connections)


def offered(server: PeerServer, clerk: Clerk, *requests: str, frame_seconds: float = 5.0) -> PeerSource:
    """A source with these hand-overs, all of one prompt; the first is read from."""
    peer = source(server, frame_seconds=frame_seconds)
    peer.register(LAYOUT)
    for request in requests:
        offering_it = threading.Thread(target=clerk.offer)
        offering_it.start()
        assert peer.ask(request, "", PROMPT, KEYS, 5.0) == READY
        offering_it.join()
    return peer


class Stall:
    """The first piece that is fetched waits for the gate; the others come at once."""

    def __init__(self, server: PeerServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate, self.reached, self._fetched = threading.Event(), threading.Event(), server._fetched
        monkeypatch.setattr(server, "_fetched", self)

    def __call__(self, offer: Offer, asked: object) -> memoryview:
        if not self.reached.is_set():
            self.reached.set()
            self.gate.wait(20)
        return self._fetched(offer, asked)


@pytest.mark.story
def test_an_answer_that_comes_late_is_not_taken_for_the_next_record(
    clerk: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All units have one size, and frames are in order: only a new connection tells whose answer it is."""
    with holding(clerk) as server:
        peer, stall = offered(server, clerk, "one", frame_seconds=0.3), Stall(server, monkeypatch)
        back = bytearray(Records(PLAN).unit_bytes)
        waiting: list[bool] = []
        second = threading.Thread(target=lambda: waiting.append(peer.read(b"u" + KEYS[5], [memoryview(back)])))
        first = threading.Thread(target=lambda: (stall.reached.wait(20), second.start()))
        first.start()
        with pytest.raises(TierFailed, match="no answer in time"):
            peer.read(b"u" + KEYS[3], [memoryview(bytearray(len(back)))])
        stall.gate.set()
        first.join()
        second.join()
        assert waiting == [False], "whoever waited for the connection does not get it"
        assert not peer.read(b"u" + KEYS[5], [memoryview(back)])
        assert peer.has([b"u" + KEYS[5]]) == [False]
        assert not any(back)
        assert not len(peer)


@pytest.mark.story
def test_a_hand_over_that_has_expired_is_gone_and_the_others_are_not(clerk: Clerk) -> None:
    """It waited too long in a queue: that is no failure of the tier."""
    with holding(clerk, 0.2) as server:
        peer = offered(server, clerk, "expires")
        until(lambda: clerk.given_up == clerk.asked)
        server._held_seconds = 30.0
        guard = GuardedTier(peer, LAYOUT, time.monotonic)
        guard.mend()
        offering_it = threading.Thread(target=clerk.offer)
        offering_it.start()
        assert peer.ask("holds", "", PROMPT, KEYS, 5.0) == READY
        offering_it.join()
        back = [memoryview(bytearray(Records(PLAN).unit_bytes))]
        assert not guard.read(b"u" + KEYS[3], back)
        assert guard.can_read
        assert guard.read(b"u" + KEYS[3], back), "the other one has it too"
        peer.close()


@pytest.mark.story
def test_an_engine_whose_loop_stands_still_falls_silent(
    server: PeerServer, clerk: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads of its wires go on: they speak for the loop, not for themselves."""
    monkeypatch.setattr(offering, "BEAT_SECONDS", 0.05)
    clerk.is_still = True
    peer = source(server, frame_seconds=0.3)
    peer.register(LAYOUT)
    with pytest.raises(TierFailed, match="no answer in time"):
        peer.ask("still", "", PROMPT, KEYS, seconds=5.0)
    until(lambda: clerk.given_up == clerk.asked)
