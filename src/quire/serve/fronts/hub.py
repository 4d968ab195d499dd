"""The process in the middle: it speaks no HTTP, and has everything of which there is one.

    clients ──▶ hub: accepts, hands connections on ──▶ fronts: HTTP, keys, tokens, text, streams
                hub: allowances, stored responses, calls, metrics ◀── questions ── fronts
                hub ◀──commands, a tick per step──▶ engine
                hub ──a tick's part, unread──▶ the front whose requests it is about

A front that dies is started again after a pause that doubles. Its requests are cancelled, and what it had counted is
given back.

Before it answers a question of one front, the hub reads what all of them have sent. So a client that has an answer from
one front and asks another one finds what the first has stored, and has back what it did not use.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from quire.serve.allowance import about_to_stop
from quire.serve.away import EngineStarting
from quire.serve.client import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, NOT_READY, ROOM_SECONDS, STABLE_SECONDS
from quire.serve.engine_forks import FORK_SECONDS
from quire.serve.engine_views import ViewReply, WholeView
from quire.serve.fronts import messages as m
from quire.serve.fronts.channel import ChannelLost
from quire.serve.fronts.hub_engine import HubEngine
from quire.serve.fronts.metrics import AllProcesses
from quire.serve.fronts.processes import EXIT_SECONDS, REAP_SECONDS, CountedCall, FrontProcess, spawn
from quire.serve.lease_register import LeaseRegister
from quire.serve.messages import Cancel, CancelFront, EngineTick, Failed, RequestState, RoutedTick, Submit
from quire.serve.responses.store import Stored
from quire.serve.service import Shared
from quire.serve.views import EngineViews, Seen

ANSWER_SECONDS = 2.0
"""A front that takes longer to answer the hub is left out."""
TICK_SECONDS = 0.1
"""How often fronts learn of progress that concerns none of their requests."""
WATCH_SECONDS = 1.0
MOST_SILENT_LOOKS = 30
"""A front that is silent for longer is ended: its event loop hangs."""
Handler = Callable[[FrontProcess, Any], Any]


class Hub:
    def __init__(
        self,
        engine: HubEngine,
        shared: Shared,
        metrics: AllProcesses,
        setups: list[m.FrontSetup],
        tell: Callable[..., None],
        *,
        leases: LeaseRegister,
    ) -> None:
        self._engine, self._shared, self._metrics, self._tell = engine, shared, metrics, tell
        self._leases, self._views = leases, EngineViews(engine)
        self._setups = {setup.number: setup for setup in setups}
        self.fronts: dict[int, FrontProcess] = {}
        self.boot_failure: Failed | None = None
        self.given_up = asyncio.Event()
        self.all_started = asyncio.Event()
        """For the first time."""
        self.on_started: Callable[[], None] = lambda: None
        """Called whenever a front can take connections."""
        self._pauses = dict.fromkeys(self._setups, FIRST_PAUSE_SECONDS)
        self._is_closing = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._told_at = 0.0
        engine.on_change, engine.on_routed = self._tell_state, self._pass_on
        engine.open_names_of_fronts = self.open_names
        engine.open_count_of_fronts = lambda: shared.allowances.total
        self._notices: dict[type, Handler] = {
            m.Started: self._started,
            m.StartFailed: self._start_failed,
            m.ForEngine: self._for_engine,
            m.Left: self._left,
            m.NotedCall: lambda _, it: shared.calls.note(it.call, it.tenant, it.request_id, it.names),
            m.Kept: lambda _, it: shared.responses.put(it.tenant, it.response, it.entry),
            m.Beat: self._beat,
            m.Closed: self._closed,
        }
        self._questions: dict[type, Callable[[FrontProcess, Any], Awaitable[object]]] = {
            m.Enter: self._enter,
            m.ViewAllowance: self._view,
            m.NamesOf: lambda _, it: shared.calls.names_of(it.call, it.tenant),
            m.NamesOfTenant: lambda _, it: shared.calls.names_of_tenant(it.tenant),
            m.FetchResponses: self._fetch,
            m.RemoveResponse: lambda _, it: shared.responses.remove(it.tenant, it.response),
            m.AskEngine: self._ask_engine,
            m.AskHubLeases: lambda _, it: self._leases.ask(it.question),
            m.AskHubFork: lambda _, it: self._engine.fork(it.question, FORK_SECONDS),
            m.AskHubRoom: lambda _, it: self._engine.room(it.request, ROOM_SECONDS),
            m.AskHubView: self._view_of_engine,
            m.AskState: self._ask_state,
            m.AllMetrics: self._all_metrics,
            m.AbortRequests: self._abort,
            m.StatesOf: self._states,
        }

    # ── processes ─────────────────────────────────────────────────────────

    def start(self) -> None:
        """For the first time: if no process can be made, the server gives up."""
        try:
            for number in self._setups:
                self._spawn(number)
        except OSError as error:
            self._give_up(Failed(f"an HTTP process cannot be started: {error}", 1))
        self._do(self._watch())

    def taking(self) -> list[FrontProcess]:
        """Fronts that take connections."""
        return [front for front in self.fronts.values() if front.is_started]

    def open_names(self) -> list[str]:
        return [name for front in self.fronts.values() for name in front.names]

    def _spawn(self, number: int) -> None:
        front = self.fronts[number] = spawn(number)
        channel = front.channel
        channel.on_notice = partial(self._note, front)
        channel.on_question = partial(self._answer, front)
        channel.on_lost = partial(self._lose, front)
        channel.send(self._setups[number])
        channel.send(self._state())
        channel.open()

    def _lose(self, front: FrontProcess) -> None:
        """What it had is given back before anything else happens."""
        requests = sum(call.requests for call in front.calls.values())
        front.drop()
        self._give_back(front)
        self._do(self._died(front, requests))

    async def _died(self, front: FrontProcess, requests: int) -> None:
        code = await front.ended(REAP_SECONDS)
        if self._is_closing or self.fronts.get(front.number) is not front:
            return
        self._tell("front_died", "error", front=front.number, exit_code=code, requests=requests)
        if not self.all_started.is_set():
            self._give_up(Failed("an HTTP process died while it started", 1))
            return
        if time.monotonic() - front.started_at > STABLE_SECONDS:
            self._pauses[front.number] = FIRST_PAUSE_SECONDS
        await self._start_again(front.number)

    def _give_back(self, front: FrontProcess) -> None:
        for call in front.calls.values():
            self._shared.allowances.leave(call.tenant, call.requests, call.tokens)
        front.calls.clear()
        self._metrics.front_died(front.number)
        if self._engine.is_ready:
            self._engine.pass_on(CancelFront(front.number))

    async def _start_again(self, number: int) -> None:
        while True:
            pause = self._pauses[number]
            self._pauses[number] = min(2 * pause, LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)
            if self._is_closing:
                return
            try:
                self._spawn(number)
                return
            except OSError as error:
                pause = self._pauses[number]
                self._tell("front_not_started", "error", front=number, message=str(error), pause_seconds=pause)

    def _give_up(self, failure: Failed) -> None:
        self.boot_failure = self.boot_failure or failure
        self.given_up.set()

    async def _watch(self) -> None:
        """Ends fronts whose event loop hangs. Counted in looks, not by the clock: a machine that slept is no reason."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for front in self.taking():
                front.silent_looks += 1
                if front.silent_looks > MOST_SILENT_LOOKS:
                    seconds = front.silent_looks * WATCH_SECONDS
                    self._tell("front_stuck", "error", front=front.number, seconds=seconds)
                    front.process.kill()

    async def close(self) -> None:
        """Ends all fronts; their calls end with an error."""
        self._is_closing = True
        self.tell_all(m.End())
        await asyncio.gather(*(front.ended(EXIT_SECONDS) for front in self.fronts.values()))
        for front in self.fronts.values():
            front.drop()
        for task in self._tasks:
            task.cancel()

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ── what the engine says ──────────────────────────────────────────────

    def _state(self) -> m.EngineState:
        engine = self._engine
        progress = engine.progress
        return m.EngineState(
            engine.lives,
            engine.has_process,
            engine.is_ready,
            engine.restarts,
            progress.steps,
            progress.seconds_since,
            engine.last_words,
            engine.lost,
        )

    def _tell_state(self) -> None:
        self.tell_all(self._state())

    def tell_all(self, message: object) -> None:
        pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for front in self.fronts.values():
            front.channel.send_pickled(pickled)

    def _pass_on(self, routed: RoutedTick) -> None:
        """The status first: no front shows an idle engine to a client that has its first token."""
        self._tell_tick(routed.tick)
        for number, part in routed.parts.items():
            if number in self.fronts:
                self.fronts[number].channel.send_pickled(part)

    def _tell_tick(self, tick: EngineTick) -> None:
        now = time.monotonic()
        if tick.status is not None or now - self._told_at >= TICK_SECONDS:
            self._told_at = now
            self.tell_all(tick)

    # ── what a front says ─────────────────────────────────────────────────

    def _note(self, front: FrontProcess, notice: object) -> None:
        self._notices[type(notice)](front, notice)

    def _started(self, front: FrontProcess, _notice: m.Started) -> None:
        front.is_started = True
        seconds = round(time.monotonic() - front.started_at, 2)
        self._tell("front_ready", front=front.number, process=front.process.pid, seconds=seconds)
        if self._shared.allowances.is_draining:
            front.channel.send(m.Drain())
        if len(self.taking()) == len(self._setups):
            self.all_started.set()
        if self.all_started.is_set():
            self.on_started()

    def _start_failed(self, front: FrontProcess, failed: m.StartFailed) -> None:
        if not self.all_started.is_set():
            self._give_up(Failed(failed.message, failed.exit_code))
        else:
            pause = self._pauses[front.number]
            self._tell("front_not_started", "error", front=front.number, message=failed.message, pause_seconds=pause)

    def _for_engine(self, front: FrontProcess, given: m.ForEngine) -> None:
        command = given.command
        names = tuple(one.name for one in command.requests) if isinstance(command, Submit) else ()
        try:
            if given.life != self._engine.lives:
                raise EngineStarting(NOT_READY)
            self._engine.pass_on(command)
            front.names.update(names)
        except EngineStarting as error:
            front.channel.send(m.Lost(names, error))
        if isinstance(command, Cancel):
            front.names.difference_update(command.names)

    def _left(self, front: FrontProcess, left: m.Left) -> None:
        call = front.calls.pop(left.grant)
        self._shared.allowances.leave(call.tenant, call.requests, left.unused_tokens)

    def _beat(self, front: FrontProcess, beat: m.Beat) -> None:
        front.names, front.silent_looks = set(beat.names), 0

    def _closed(self, front: FrontProcess, closed: m.Closed) -> None:
        front.connections -= closed.connections

    # ── what a front asks ─────────────────────────────────────────────────

    async def _answer(self, front: FrontProcess, question: object) -> object:
        for one in list(self.fronts.values()):
            one.channel.read()
        return await self._questions[type(question)](front, question)

    async def _enter(self, front: FrontProcess, call: m.Enter) -> int:
        allowances = self._shared.allowances
        if front.is_gone:
            raise ChannelLost("the front has ended")
        if allowances.is_draining:
            raise about_to_stop()
        allowances.enter(call.tenant, call.requests, call.tokens)
        front.calls[call.grant] = CountedCall(call.tenant, call.requests, call.tokens)
        return allowances.retry_seconds

    async def _view(self, _front: FrontProcess, asked: m.ViewAllowance) -> m.Allowance:
        allowances, tenant = self._shared.allowances, asked.tenant
        requests = {tenant.name: allowances.requests[tenant.name]}
        return m.Allowance(requests, allowances.retry_seconds, allowances.tokens_left(tenant))

    async def _fetch(self, _front: FrontProcess, asked: m.FetchResponses) -> dict[str, Stored]:
        found = {one: self._shared.responses.find(asked.tenant, one) for one in asked.responses}
        return {name: entry for name, entry in found.items() if entry is not None}

    async def _ask_engine(self, _front: FrontProcess, asked: m.AskEngine) -> Any:
        if asked.names is not None:
            return await self._engine.explain(asked.names, asked.seconds)
        return await self._engine.drop_cache(asked.scope, asked.seconds)

    async def _view_of_engine(self, _front: FrontProcess, asked: m.AskHubView) -> Seen | ViewReply:
        if isinstance(asked.question, WholeView):
            return await self._views.latest(asked.seconds)
        return await self._views.ask(asked.question, asked.seconds)

    async def _ask_state(self, _front: FrontProcess, _asked: m.AskState) -> m.EngineState:
        return self._state()

    async def _all_metrics(self, _front: FrontProcess, _asked: m.AllMetrics) -> bytes:
        return self._metrics.text(await self._ask_all(m.OwnMetrics()))

    async def _abort(self, _front: FrontProcess, asked: m.AbortRequests) -> dict[str, int]:
        answers = await self._ask_all(asked)
        return {name: tokens for one in answers.values() for name, tokens in one.items()}

    async def _states(self, _front: FrontProcess, asked: m.StatesOf) -> dict[str, RequestState]:
        answers = await self._ask_all(asked)
        return {name: state for one in answers.values() for name, state in one.items()}

    async def _ask_all(self, question: object) -> dict[int, Any]:
        """By front: its answer. Fronts that do not answer, or have died since, are left out."""
        fronts = self.taking()
        answers = await asyncio.gather(*(_asked(front, question) for front in fronts))
        answered = zip(fronts, answers, strict=True)
        return {front.number: answer for front, answer in answered if answer is not None and not front.is_gone}


async def _asked(front: FrontProcess, question: object) -> Any:
    try:
        return await asyncio.wait_for(front.channel.ask(question), ANSWER_SECONDS)
    except (TimeoutError, ChannelLost):
        return None
