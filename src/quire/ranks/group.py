"""The other ranks, as rank 0 sees them: it sends them steps, and a thread waits for all of them.

    rank 0   ──── step 7, step 8 ────▶  rank 1        a pipe that closes, or a step that is not confirmed in time: the
             ◀─── step 7 is done ─────                rank is lost, and with it the group, which has one life

A death is noticed here and never by a collective: on a GPU that would wait for minutes. When a rank is lost, all others
are killed, which also ends what rank 0 may be waiting for in a collective.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from quire.core.errors import QuireError
from quire.ranks.channel import Channel, Json, Kind, Message

Found = TypeVar("Found")
LOOK_SECONDS = 0.05
REAP_SECONDS = 1.0
"""How long a process whose pipe has closed may take to end, so that its exit code can be reported."""


class RankLost(QuireError):
    """A rank has ended, or does not answer: the group cannot go on."""


@dataclass(eq=False)
class Link:
    """One rank. `process`: of a rank on this machine that this process has started. Ranks that others start for it are
    a subclass."""

    number: int
    channel: Channel
    process: subprocess.Popen[bytes] | None = None
    answers: queue.SimpleQueue[Json] = field(default_factory=queue.SimpleQueue)
    confirmed: int = 0
    """The last step that it has launched."""
    heard_at: float = field(default_factory=time.monotonic)

    def end(self) -> None:
        """On purpose."""
        with contextlib.suppress(OSError):
            self.channel.send(Kind.END)

    def reap(self) -> None:
        """Returns when its process has ended."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(REAP_SECONDS)
        self.kill()
        if self.process is not None:
            self.process.wait()

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(OSError):
                self.process.kill()
        self.channel.close()

    @property
    def was_killed(self) -> bool:
        return self.process is not None and (self.process.poll() or 0) < 0

    def ending(self) -> str:
        """How its process has ended."""
        if self.process is None:
            return "its connection has closed"
        try:
            code = self.process.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:
            return "its pipe has closed"
        return f"it was killed by {_signal_name(-code)}" if code < 0 else f"its process ended with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Group:
    def __init__(
        self, links: Sequence[Link], start_seconds: float, on_lost: Callable[[str], None] = lambda _why: None
    ) -> None:
        """`on_lost`: called once, from the group's thread, with what happened."""
        self.links, self._seconds, self._on_lost = tuple(links), start_seconds, on_lost
        self.lost = ""
        """Why the group cannot go on; empty: it can."""
        self._is_closing, self._is_running = False, False
        self._has_lost = threading.Event()
        self._launched: dict[int, float] = {}
        """Steps that some rank has not confirmed: when each was launched."""
        self._orders = itertools.count()
        self._answers: dict[int, queue.SimpleQueue[Json]] = {}
        """To orders about records, by their numbers."""
        self._untaken: dict[tuple[int, int], float] = {}
        """By rank and order: when it was sent, until the rank has received it. It may take any time to follow it."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._thread.start()

    # ── the start ─────────────────────────────────────────────────────────

    def send_json(self, value: Json) -> None:
        for link in self.links:
            self._send(link, lambda link=link: link.channel.send_json(value))  # type: ignore[misc]

    def refuse(self, why: str) -> None:
        """The group does not begin. Ranks end by themselves, each saying why."""
        self.send_json({"refused": why})
        self._is_closing = True

    def answers(self) -> list[Json]:
        """One of each rank, in their order. Raises RankLost."""
        found = []
        for link in self.links:
            found.append(self._next(link.answers))
        return found

    def watched(self, work: Callable[[], Found]) -> Found:
        """Calls `work`, which may wait for other ranks in ways that no signal ends. Raises RankLost as soon as one is
        lost; the call is then left to its thread."""
        done: queue.SimpleQueue[Found | BaseException] = queue.SimpleQueue()

        def call() -> None:
            try:
                done.put(work())
            except BaseException as error:
                done.put(error)

        threading.Thread(target=call, name="ranks-start", daemon=True).start()
        while True:
            self.require_all()
            with contextlib.suppress(queue.Empty):
                found = done.get(timeout=LOOK_SECONDS)
                if isinstance(found, BaseException):
                    self.require_all(REAP_SECONDS)
                    raise found
                return found

    def run(self, step_seconds: float) -> None:
        """From now on ranks confirm each step within this time."""
        self._seconds, self._is_running = step_seconds, True

    # ── steps ─────────────────────────────────────────────────────────────

    def launch(self, number: int, data: bytes) -> None:
        """Sends a step. Raises RankLost."""
        with self._lock:
            self._launched[number] = time.monotonic()
        for link in self.links:
            self._send(link, lambda link=link: link.channel.send(Kind.STEP, data))  # type: ignore[misc]

    def order(self, order: Json) -> Callable[[], list[Json]]:
        """Sends an order about a record to all ranks, which follow it after the steps before it. Returns what waits for
        their answers. Both raise RankLost."""
        number = next(self._orders)
        answers = self._answers[number] = queue.SimpleQueue()
        for link in self.links:
            with self._lock:
                self._untaken[link.number, number] = time.monotonic()
            self._send(link, lambda link=link: link.channel.send_json({**order, "number": number}, Kind.RECORD))  # type: ignore[misc]

        def wait() -> list[Json]:
            found = [self._next(answers) for _ in self.links]
            del self._answers[number]
            return found

        return wait

    def _next(self, answers: queue.SimpleQueue[Json]) -> Json:
        while True:
            self.require_all()
            with contextlib.suppress(queue.Empty):
                return answers.get(timeout=LOOK_SECONDS)

    def _send(self, link: Link, send: Callable[[], None]) -> None:
        self.require_all()
        try:
            send()
        except OSError:
            self.require_all(REAP_SECONDS)
            raise RankLost(f"rank {link.number} cannot be reached") from None

    def require_all(self, seconds: float = 0.0) -> None:
        """Raises RankLost, if a rank is lost now or within some seconds."""
        if self._has_lost.wait(seconds) if seconds else self._has_lost.is_set():
            raise RankLost(self.lost)

    def close(self) -> None:
        """Ends all ranks; returns when their processes have ended."""
        is_refused, self._is_closing = self._is_closing, True
        for link in self.links if not is_refused else ():
            link.end()
        for link in self.links:
            link.reap()

    # ── the thread ────────────────────────────────────────────────────────

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for link in self.links:
                selector.register(link.channel, selectors.EVENT_READ, link)
            while not (self._is_closing or self.lost):
                for key, _ in selector.select(LOOK_SECONDS):
                    self._read(key.data)
                self._require_in_time()

    def _read(self, link: Link) -> None:
        link.heard_at = time.monotonic()
        try:
            for message in link.channel.receive():
                self._note(link, message)
        except (EOFError, ValueError):
            self._lose(link, link.ending())

    def _note(self, link: Link, message: Message) -> None:
        if message.kind is Kind.DONE:
            link.confirmed = message.number()
            with self._lock:
                least = min(one.confirmed for one in self.links)
                for number in [number for number in self._launched if number <= least]:
                    del self._launched[number]
            return
        answer = message.json()
        if "taken" in answer:
            with self._lock:
                del self._untaken[link.number, answer["taken"]]
        elif message.kind is Kind.RECORD:
            self._answers[answer["number"]].put(answer)
        elif "failed" in answer:
            self._lose(link, answer["failed"])
        elif "progress" not in answer:
            link.answers.put(answer)

    def _require_in_time(self) -> None:
        """At the start each rank says something, later it confirms steps."""
        now = time.monotonic()
        if not self._is_running:
            silent = [link for link in self.links if now - link.heard_at > self._seconds]
            if silent:
                self._lose(silent[0], f"it has said nothing for {self._seconds:g} s of its start")
            return
        with self._lock:
            oldest = min(self._launched, default=None)
            age = 0.0 if oldest is None else now - self._launched[oldest]
            late = [rank for (rank, _), sent_at in self._untaken.items() if now - sent_at > self._seconds]
        if late:
            link = next(link for link in self.links if link.number == late[0])
            self._lose(link, f"it has not taken an order about a record within {self._seconds:g} s (--step-seconds)")
        if oldest is not None and age > self._seconds:
            behind = min(self.links, key=lambda link: link.confirmed)
            self._lose(behind, f"it has not confirmed step {oldest} within {self._seconds:g} s (--step-seconds)")

    def _lose(self, link: Link, why: str) -> None:
        if self.lost or self._is_closing:
            return
        killed = next((one for one in self.links if one.was_killed), link)  # others fail because of it
        why = why if killed is link else killed.ending()
        self.lost = f"rank {killed.number} of {len(self.links) + 1} is lost: {why}"
        self._has_lost.set()
        for one in self.links:
            one.kill()
        self._on_lost(self.lost)
