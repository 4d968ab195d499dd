"""The HTTP process's side of the engine: starts it, sends it commands, watches it, and restarts it when it died.

    starting ──Ready──▶ ready ──pipe closes──▶ dead ──(a pause that doubles)──▶ starting
        └──Failed──▶ dead; at the first boot the server gives up instead
                                                 dead ──(no process can be made)──▶ dead, and a longer pause

One thread reads the pipe and one writes to it, so that an engine that hangs never blocks the event loop; everything
else happens in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, ClassVar

from quire.core.child import python
from quire.core.errors import QuireError
from quire.core.request import Request
from quire.serve.engine_leases import LeaseQuestion, LeaseReply
from quire.serve.mailbox import Mailbox
from quire.serve.messages import (
    ABORTED,
    AskLeases,
    Cancel,
    DropCache,
    EngineSetup,
    EngineTick,
    Explain,
    Failed,
    Message,
    Ready,
    Reply,
    RequestUpdate,
)
from quire.serve.messages import Submit as SubmitOrder
from quire.serve.progress import Progress

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 30.0
REAP_SECONDS = 2.0
CLOSE_SECONDS = 5.0
STABLE_SECONDS = 60.0
"""An engine that ran this long is restarted at once when it dies."""


class EngineAway(QuireError):
    """The engine is not available now: base of the errors below."""

    code: ClassVar[str]
    """The error code in the API."""


class EngineGone(EngineAway):
    """The engine's process died, and all requests in progress with it: try again soon."""

    code = "engine_gone"


class EngineStarting(EngineAway):
    """The engine accepts no requests yet: it is starting, for the first time or again."""

    code = "engine_starting"


class EngineSilent(EngineAway):
    """The engine did not answer a question in time."""

    code = "engine_silent"


class EngineStopping(EngineAway):
    """The server stops, and the engine with it: another server must answer."""

    code = "draining"


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One request in progress, and when it generated what."""

    request: Request
    updates: Updates
    sent_at: float = field(default_factory=time.monotonic)
    first_at: float | None = None
    last_at: float | None = None
    output_tokens: int = 0
    hit_tokens: int | None = None
    """Tokens of the prompt found in the cache; None: it has not started."""


Updates = Mailbox[tuple[PendingRequest, RequestUpdate | EngineAway]]
"""Of the requests of one call."""


@dataclass(slots=True)
class Life:
    """One process of the engine, from start to end."""

    process: subprocess.Popen[bytes]
    pipe: socket.socket
    connection: Connection
    """Messages over the pipe."""
    started_at: float
    commands: SimpleQueue[object] = field(default_factory=SimpleQueue)
    is_ready: bool = False


class EngineClient:
    def __init__(self, setup: EngineSetup, progress: Progress, tell: Callable[..., None]) -> None:
        self.setup, self.progress, self._tell = setup, progress, tell
        self.tickets: dict[str, PendingRequest] = {}
        self.tick = EngineTick(0, True)
        """The latest one that had a status."""
        self.restarts = 0
        self.on_tokens: Callable[[PendingRequest, int, float], None] = lambda _ticket, _tokens, _now: None
        self.on_first_ready: Callable[[Ready], None] = lambda _ready: None
        self.boot_failure: Failed | None = None
        """Why the first engine could not start."""
        self.given_up = asyncio.Event()
        self.is_hurried = False
        """Closing does not wait for the engine to write to its tiers."""
        self._life: Life | None = None
        self._was_ready = False
        self._is_closing = False
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    # ── lifecycle ─────────────────────────────────────────────────────────

    @property
    def is_ready(self) -> bool:
        return self._life is not None and self._life.is_ready

    def start(self) -> None:
        """For the first time: if no process can be made, the server gives up."""
        try:
            self._spawn()
        except (OSError, RuntimeError) as error:
            self.boot_failure = Failed(f"the engine's process cannot be started: {error}", 1)
            self.given_up.set()

    def _spawn(self) -> None:
        """Raises OSError or RuntimeError, and leaves nothing open, if there is no descriptor, memory or thread."""
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair()
            undo.enter_context(ours)
            with theirs:
                connection = undo.enter_context(Connection(os.dup(ours.fileno())))
                process = _engine_process(theirs.fileno())
                undo.callback(_end_at_once, process)
            life = Life(process, ours, connection, time.monotonic())
            life.commands.put(self.setup)
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._read, args=(life, loop), name="engine-reader", daemon=True).start()
            threading.Thread(target=self._write, args=(life,), name="engine-writer", daemon=True).start()
            undo.pop_all()
        self._life = life
        self.progress.engine_starts()

    def _read(self, life: Life, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: one call on the event loop per message."""
        with contextlib.suppress(RuntimeError):  # the loop may end before the engine does
            with contextlib.suppress(EOFError, OSError):
                while True:
                    message: Message = life.connection.recv()
                    loop.call_soon_threadsafe(self._receive, life, message)
            loop.call_soon_threadsafe(self._died, life, _reap(life.process))

    @staticmethod
    def _write(life: Life) -> None:
        """In a thread. None is the last command: the pipe closes."""
        with life.pipe, contextlib.suppress(OSError):  # the reader notices as well
            while (command := life.commands.get()) is not None:
                life.connection.send(command)
            life.pipe.shutdown(socket.SHUT_RDWR)

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Ends the process: by closing the pipe, else by force. If `is_hurried`, it waits only the default time."""
        self._is_closing = True
        life, self._life = self._life, None
        if life is None:
            return
        life.commands.put(None)
        begun = time.monotonic()
        while life.process.poll() is None:
            if time.monotonic() - begun > (CLOSE_SECONDS if self.is_hurried else seconds):
                life.process.kill()
            await asyncio.sleep(0.02)

    def _died(self, life: Life, exit_code: int) -> None:
        if self._is_closing or life is not self._life:
            return
        self._life = None
        self.progress.engine_is_gone()
        life.commands.put(None)
        self._tell("engine_died", "error", exit_code=exit_code, requests=len(self.tickets))
        self.end_all(EngineGone("the engine's process died; it is being started again: send the request once more"))
        if not self._was_ready:
            self.boot_failure = self.boot_failure or Failed("the engine's process died while it started", 1)
            self.given_up.set()
            return
        if time.monotonic() - life.started_at > STABLE_SECONDS:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        task = asyncio.get_running_loop().create_task(self._start_again())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end_all(self, error: EngineAway) -> None:
        """Ends all waiting requests and questions with this error."""
        for ticket in self.tickets.values():
            ticket.updates.put((ticket, error))
        self.tickets.clear()
        for question in self._questions.values():
            if not question.done():
                question.set_exception(error)
        self._questions.clear()

    async def _start_again(self) -> None:
        """Tries until there is a process: what is short now (descriptors, memory) may be free after the next pause."""
        while self._life is None:
            pause, self._pause_seconds = self._pause_seconds, min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)
            if self._is_closing:
                return
            try:
                self._spawn()
            except (OSError, RuntimeError) as error:
                self._tell("engine_not_started", "error", message=str(error), pause_seconds=self._pause_seconds)
            else:
                self.restarts += 1

    # ── what the engine says ──────────────────────────────────────────────

    def _receive(self, life: Life, message: Message) -> None:
        if life is not self._life:
            return
        match message:
            case EngineTick():
                self._note_tick(message)
            case Reply(number, value):
                question = self._questions.pop(number, None)
                if question is not None and not question.done():
                    question.set_result(value)
            case Ready():
                self._begin(life, message)
            case Failed():
                self.boot_failure = message
                self._tell("engine_failed", "error", message=message.message)

    def _begin(self, life: Life, ready: Ready) -> None:
        if not self._was_ready:
            self.on_first_ready(ready)
        life.is_ready = self._was_ready = True
        self.progress.reset()
        seconds = round(time.monotonic() - life.started_at, 2)
        steps = {"steps": ready.steps, "kernels": "; ".join(ready.kernels)} if ready.steps else {}
        self._tell("engine_ready", process=life.process.pid, seconds=seconds, device=self.setup.options.device, **steps)

    def _note_tick(self, tick: EngineTick) -> None:
        now = time.monotonic()
        self.progress.note(tick.steps, tick.is_idle)
        if tick.status is not None:
            if tick.books and tick.books != self.tick.books:
                self._tell("books_do_not_balance", "error", message=tick.books)
            self.tick = replace(tick, updates=())
        for update in tick.updates:
            ticket = self.tickets.get(update.name)
            if ticket is None:
                continue  # it was cancelled while this was in the pipe
            if update.hit_tokens is not None:
                ticket.hit_tokens = update.hit_tokens
            if update.tokens:
                self.on_tokens(ticket, len(update.tokens), now)
                ticket.first_at = ticket.first_at or now
                ticket.last_at = now
                ticket.output_tokens += len(update.tokens)
            if update.ending or update.refusal:
                del self.tickets[update.name]
            ticket.updates.put((ticket, update))

    # ── what the engine is asked ──────────────────────────────────────────

    def submit(self, requests: Sequence[Request], updates: Updates) -> list[PendingRequest]:
        tickets = [PendingRequest(request, updates) for request in requests]
        self._send(SubmitOrder(tuple(requests)))
        self.tickets.update({ticket.request.name: ticket for ticket in tickets})
        return tickets

    def cancel(self, tickets: Sequence[PendingRequest]) -> None:
        """Cancels requests: they get no further updates. Those that ended, or died with their engine, are skipped."""
        names = tuple(t.request.name for t in tickets if self.tickets.pop(t.request.name, None) is not None)
        if names and self.is_ready:
            self._send(Cancel(names))

    def abort(self, names: Sequence[str]) -> dict[str, int]:
        """Ends requests before they are complete, with an update for their caller. Returns the tokens that each had
        generated; those that ended before are left out."""
        tickets = [self.tickets[name] for name in names if name in self.tickets]
        self.cancel(tickets)
        for ticket in tickets:
            ticket.updates.put((ticket, RequestUpdate(ticket.request.name, ending=ABORTED)))
        return {ticket.request.name: ticket.output_tokens for ticket in tickets}

    async def explain(self, names: Sequence[str], seconds: float) -> Any:
        number = next(self._numbers)
        return await self._ask(number, Explain(number, tuple(names)), seconds)

    async def drop_cache(self, scope: str | None, seconds: float) -> tuple[int, list[str]]:
        """Returns how many units were dropped, and the tiers that keep their records."""
        number = next(self._numbers)
        units, keeping = await self._ask(number, DropCache(number, scope), seconds)
        return units, keeping

    async def leases(self, question: LeaseQuestion, seconds: float) -> LeaseReply:
        number = next(self._numbers)
        reply: LeaseReply = await self._ask(number, AskLeases(number, question), seconds)
        return reply

    async def _ask(self, number: int, question: Explain | DropCache | AskLeases, seconds: float) -> Any:
        self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(question)
            return await asyncio.wait_for(self._questions[number], seconds)
        except TimeoutError:
            raise EngineSilent(f"the engine did not answer within {seconds:g} s: look at /health/progress") from None
        finally:
            self._questions.pop(number, None)

    def _send(self, command: object) -> None:
        if self._life is None or not self._life.is_ready:
            raise EngineStarting("the engine is not ready: it is starting, come back in a few seconds")
        self._life.commands.put(command)


def _engine_process(descriptor: int) -> subprocess.Popen[bytes]:
    """With the pipe at this descriptor."""
    command = python("-m", "quire.serve.engine_process", str(descriptor))
    return subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL, stdout=sys.stderr)


def _end_at_once(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _reap(process: subprocess.Popen[bytes]) -> int:
    """The pipe closed, so the process has ended or is about to; one that does not end is killed."""
    try:
        return process.wait(REAP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
