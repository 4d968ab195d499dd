"""The HTTP process's side of the engine: starts it, sends it commands, watches it, and restarts it when it died.

    starting ──Ready──▶ ready ──pipe closes──▶ dead ──(a pause that doubles)──▶ starting
        └──Failed──▶ dead; at the first boot the server gives up instead
                                                 dead ──(no process can be made)──▶ dead, and a longer pause

All of it happens in the event loop, and nothing there waits for the engine: what an engine that hangs does not read is
kept until it does (`frames.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from quire.core.request import Request
from quire.explain.room import Room
from quire.serve.away import EngineAway, EngineSilent, EngineStarting, gone
from quire.serve.ending import end_at_once, ended_how, reap
from quire.serve.engine_forks import ForkQuestion, ForkReply
from quire.serve.engine_leases import LeaseQuestion, LeaseReply
from quire.serve.engine_views import ViewQuestion, ViewReply
from quire.serve.frames import FramePipe
from quire.serve.messages import (
    ABORTED,
    AskFork,
    AskLeases,
    AskRoom,
    AskView,
    Cancel,
    DropCache,
    EndTurn,
    EngineSetup,
    EngineTick,
    Explain,
    Failed,
    Message,
    RankLost,
    Ready,
    Reply,
    RequestState,
    RequestUpdate,
    WarmUp,
)
from quire.serve.messages import Submit as SubmitOrder
from quire.serve.pending import PendingRequest, Updates
from quire.serve.progress import Progress
from quire.serve.starting import Life, engine_process
from quire.traces.traced import Parent, RequestTrace

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 30.0
CLOSE_SECONDS = 5.0
ROOM_SECONDS = 2.0
"""In which the engine says whether there is room: a router asks another server instead of waiting."""
STABLE_SECONDS = 60.0
"""An engine that ran this long is restarted at once when it dies."""


NOT_READY = "the engine is not ready: it is starting, come back in a few seconds"
Question = Explain | DropCache | AskLeases | AskFork | AskRoom | AskView


class EngineClient:
    def __init__(self, setup: EngineSetup, progress: Progress, tell: Callable[..., None]) -> None:
        self.setup, self.progress, self._tell = setup, progress, tell
        self.tickets: dict[str, PendingRequest] = {}
        self.tick = EngineTick(0, True)
        """The latest one that had a status."""
        self.restarts = 0
        self.last_words = ""
        """How the last engine that died ended."""
        self.on_first_token: Callable[[float], None] = lambda _seconds: None
        """With the time since its request was sent."""
        self.on_more_tokens: Callable[[Mapping[float, int]], None] = lambda _tokens: None
        """After a step: how many tokens came this many seconds after the one before."""
        self.on_traces: Callable[[Sequence[RequestTrace]], None] = lambda _traces: None
        """With traced requests that have ended."""
        self.on_first_ready: Callable[[Ready], None] = lambda _ready: None
        self.boot_failure: Failed | None = None
        """Why the first engine could not start; later ones are started again."""
        self.given_up = asyncio.Event()
        self.on_change: Callable[[], None] = lambda: None
        """Called when an engine's process is started, is ready or has died."""
        self.lives = 0
        """Processes of the engine so far."""
        self.is_hurried = False
        """Closing does not wait for the engine to write to its tiers."""
        self._life: Life | None = None
        self._was_ready = False
        self._is_closing = False
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self.lost = ""
        """The rank that the latest engine that died had lost; empty: it died otherwise."""
        self._waiting: list[PendingRequest] = []
        """Until there is an engine again."""
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    # ── lifecycle ─────────────────────────────────────────────────────────

    @property
    def is_ready(self) -> bool:
        return self._life is not None and self._life.is_ready

    @property
    def has_process(self) -> bool:
        return self._life is not None

    async def latest_progress(self) -> Progress:
        """Whichever process has seen the last step."""
        return self.progress

    def open_names(self) -> list[str]:
        """Requests that have not ended."""
        return list(self.tickets)

    def open_count(self) -> int:
        return len(self.tickets)

    def start(self) -> None:
        """For the first time: if no process can be made, the server gives up."""
        try:
            self._spawn()
        except (OSError, RuntimeError) as error:
            self.boot_failure = Failed(f"the engine's process cannot be started: {error}", 1)
            self.given_up.set()

    def _spawn(self) -> None:
        """Raises OSError or RuntimeError, and leaves nothing open, if there is no descriptor or memory."""
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair()
            undo.enter_context(ours)
            with theirs:
                process = engine_process(theirs.fileno())
                undo.callback(end_at_once, process)
            pipe = FramePipe(ours)
            life = Life(process, pipe, time.monotonic())
            pipe.on_notice = lambda message: self._receive(life, message)
            pipe.on_lost = lambda: self._keep(self._reap(life))
            pipe.open()
            undo.pop_all()
        pipe.send(self.setup)
        self._life, self.lives = life, self.lives + 1
        self.progress.engine_starts()
        self.on_change()

    async def _reap(self, life: Life) -> None:
        """Its pipe has closed."""
        self._died(life, await reap(life.process))

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Ends the process: by closing the pipe, else by force. If `is_hurried`, it waits only the default time."""
        self._is_closing = True
        life, self._life = self._life, None
        if life is None:
            return
        life.pipe.end()
        begun = time.monotonic()
        while life.process.poll() is None:
            if time.monotonic() - begun > (CLOSE_SECONDS if self.is_hurried else seconds):
                life.process.kill()
            await asyncio.sleep(0.02)
        life.pipe.close()

    def _died(self, life: Life, exit_code: int) -> None:
        if self._is_closing or life is not self._life:
            return
        self._life = None
        self.progress.engine_is_gone()
        self.last_words = ended_how(exit_code, self.open_count())
        why = {"reason": life.lost} if life.lost else {}
        self._tell("engine_died", "error", exit_code=exit_code, requests=self.open_count(), **why)
        self.lost = life.lost
        self.end_started(life.lost)
        self.on_change()
        if not self._was_ready:
            why_not = life.lost or "the engine's process died while it started"
            self.boot_failure = self.boot_failure or Failed(why_not, 1)
            self.given_up.set()
            return
        if time.monotonic() - life.started_at > STABLE_SECONDS:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        self._keep(self._start_again())

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end_started(self, lost: str) -> None:
        """An engine has died. If it `lost` a rank, the requests that it has not started wait for the next engine."""
        self._waiting = [one for one in self.tickets.values() if lost and one.can_wait]
        self.end_all(gone(lost), [one.request.name for one in self._waiting])

    def submit_again(self) -> None:
        """An engine is ready: it gets the requests that have waited for it, and were not cancelled meanwhile."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if self.tickets.get(one.request.name) is one:
                one.engines += 1
                self._send(SubmitOrder((one.request,), span=one.span))

    def end_all(self, error: EngineAway, kept: Sequence[str] = ()) -> None:
        """Ends all waiting requests, except those kept, and all questions with this error."""
        self.end([name for name in self.open_names() if name not in kept], error)
        for question in self._questions.values():
            if not question.done():
                question.set_exception(error)
        self._questions.clear()

    def end(self, names: Sequence[str], error: EngineAway) -> None:
        """Ends requests with this error; those that ended before are skipped."""
        for name in names:
            ticket = self.tickets.pop(name, None)
            if ticket is not None:
                ticket.updates.put((ticket, error))
                ticket.updates.deliver()

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
            case RankLost(why):
                life.lost = why
            case Failed():
                if not self._was_ready:  # a later start is tried again, and is no reason for the server's own end
                    self.boot_failure = message
                self._tell("engine_failed", "error", message=message.message)

    def _begin(self, life: Life, ready: Ready) -> None:
        if not self._was_ready:
            self.on_first_ready(ready)
        life.is_ready = self._was_ready = True
        self.progress.reset()
        seconds = round(time.monotonic() - life.started_at, 2)
        steps: dict[str, Any] = {"steps": ready.steps, "kernels": "; ".join(ready.kernels)} if ready.steps else {}
        if ready.ranks:
            steps["ranks"] = list(ready.ranks)
        self.on_change()
        self._tell("engine_ready", process=life.process.pid, seconds=seconds, device=self.setup.options.device, **steps)
        self.submit_again()

    def _note_tick(self, tick: EngineTick) -> None:
        now = time.monotonic()
        self.progress.note(tick.steps, tick.is_idle)
        if tick.status is not None:
            if tick.books and tick.books != self.tick.books:
                self._tell("books_do_not_balance", "error", message=tick.books)
            self.tick = replace(tick, tokens={}, updates=(), traces=())
        if tick.traces:
            self.on_traces(tick.traces)
        boxes: dict[Updates, None] = {}
        gaps: Counter[float] = Counter()
        tickets = self.tickets
        for name, tokens in tick.tokens.items():
            if ticket := tickets.get(name):  # else it was cancelled while this was in the pipe
                self._note_tokens(ticket, len(tokens), now, gaps)
                box = ticket.updates
                box.put((ticket, tokens))
                boxes[box] = None
        for update in tick.updates:
            if ticket := self.tickets.get(update.name):
                self._note_update(ticket, update, now, gaps)
                ticket.updates.put((ticket, update))
                boxes[ticket.updates] = None
        self.on_more_tokens(gaps)
        for box in boxes:  # once for all requests of a call, so that they become one write
            box.deliver()

    def _note_update(self, ticket: PendingRequest, update: RequestUpdate, now: float, gaps: Counter[float]) -> None:
        if update.hit_tokens is not None:
            ticket.hit_tokens = update.hit_tokens
        if update.tokens:
            self._note_tokens(ticket, len(update.tokens), now, gaps)
        if update.ending or update.refusal:
            del self.tickets[update.name]

    def _note_tokens(self, ticket: PendingRequest, count: int, now: float, gaps: Counter[float]) -> None:
        ticket.output_tokens += count
        if ticket.last_at is None:
            ticket.first_at = ticket.last_at = now
            self.on_first_token(now - ticket.sent_at)
            count -= 1
        if count:
            gaps[(now - ticket.last_at) / count] += count
        ticket.last_at = now

    # ── what the engine is asked ──────────────────────────────────────────

    def submit(self, requests: Sequence[Request], updates: Updates, span: Parent | None = None) -> list[PendingRequest]:
        """`span`: what the phases of these requests belong to, if they are wanted."""
        tickets = [PendingRequest(request, updates, number, span) for number, request in enumerate(requests)]
        self._send(SubmitOrder(tuple(requests), span=span))
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
            ticket.updates.deliver()
        return {ticket.request.name: ticket.output_tokens for ticket in tickets}

    async def abort_anywhere(self, names: Sequence[str]) -> dict[str, int]:
        """As `abort`, whichever process has these requests."""
        return self.abort(names)

    async def states_of(self, names: Sequence[str]) -> dict[str, RequestState]:
        """What is known of those that have not ended, whichever process has them."""
        tickets = [self.tickets[name] for name in names if name in self.tickets]
        return {one.request.name: RequestState(one.hit_tokens, one.output_tokens) for one in tickets}

    async def explain(self, names: Sequence[str], seconds: float) -> Any:
        return await self._ask(partial(Explain, names=tuple(names)), seconds)

    async def drop_cache(self, scope: str | None, seconds: float) -> tuple[int, list[str]]:
        """Returns how many units were dropped, and the tiers that keep their records."""
        units, keeping = await self._ask(partial(DropCache, scope=scope), seconds)
        return units, keeping

    async def leases(self, question: LeaseQuestion, seconds: float) -> LeaseReply:
        reply: LeaseReply = await self._ask(partial(AskLeases, question=question), seconds)
        return reply

    async def fork(self, question: ForkQuestion, seconds: float) -> ForkReply:
        reply: ForkReply = await self._ask(partial(AskFork, question=question), seconds)
        return reply

    async def room(self, request: Request, seconds: float) -> Room:
        found: Room = await self._ask(partial(AskRoom, request=request), seconds)
        return found

    async def view(self, question: ViewQuestion, seconds: float) -> ViewReply:
        found: ViewReply = await self._ask(partial(AskView, question=question), seconds)
        return found

    async def _ask(self, make: Callable[[int], Question], seconds: float) -> Any:
        """`make`: the question with its number."""
        number = next(self._numbers)
        self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(make(number))
            return await asyncio.wait_for(self._questions[number], seconds)
        except TimeoutError:
            raise EngineSilent(f"the engine did not answer within {seconds:g} s: look at /health/progress") from None
        finally:
            self._questions.pop(number, None)

    def tell(self, command: EndTurn | WarmUp) -> None:
        """Without an answer. Raises EngineAway if no engine is ready."""
        self._send(command)

    def _send(self, command: object) -> None:
        if self._life is None or not self._life.is_ready:
            raise EngineStarting(NOT_READY)
        self._life.pipe.send(command)
