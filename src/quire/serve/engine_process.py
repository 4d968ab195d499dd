"""The engine's process: takes commands between steps, runs the loop, reports what each step generated.

It ends when the HTTP process does (its end of the pipe closes), and ignores signals: the HTTP process decides when
everything ends.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from quire.cache.audit import BooksDoNotBalance, audit
from quire.core.errors import QueueFull, QuireError
from quire.core.events import Event, RequestEnded, RequestEvent
from quire.core.logprobs import Logprob
from quire.core.reasons import Reason, Why
from quire.core.request import Request
from quire.core.step import Runner, Step, StepResult
from quire.engine.engine import Engine, Stream
from quire.explain.events import reused_tokens
from quire.explain.explanation import Explanation
from quire.explain.request import explain
from quire.explain.room import ask
from quire.explain.status import status_of
from quire.forks.forks import Forks
from quire.handover.hooks import HandOverHooks
from quire.plan.file import decode
from quire.ranks.group import RankLost
from quire.serve import logs
from quire.serve.engine_forks import ForkReply, answer_fork
from quire.serve.engine_leases import EngineLeases, LeaseReply
from quire.serve.engine_views import ViewReply, answer_view
from quire.serve.fronts.routing import Router
from quire.serve.messages import (
    AskFork,
    AskLeases,
    AskRoom,
    AskView,
    Cancel,
    CancelFront,
    Command,
    DropCache,
    EndTurn,
    EngineSetup,
    EngineTick,
    Explain,
    Failed,
    Ready,
    Reply,
    RequestReport,
    RequestUpdate,
    Submit,
    WarmUp,
)
from quire.serve.shared_pipe import SharedPipe, ending_with_parent
from quire.traces.traced import TracedRequests
from quire.warm.work import NAME, WarmWork

if TYPE_CHECKING:
    from quire.build.engine import BuiltEngine
    from quire.tiers.stack import Stack

IDLE_TICK_SECONDS = 0.1
STATUS_SECONDS = 0.5
"""How often a busy engine reports its status; one that becomes idle or busy always does."""


def main(connection: Connection) -> None:
    """The first message is the setup."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    setup: EngineSetup = connection.recv()
    logs.set_up(setup.log_level, setup.log_format)
    updates, pipe = Updates(), SharedPipe(connection)
    try:
        with ending_with_parent(connection):
            built = _boot(setup, updates, pipe.end)
    except QuireError as error:
        pipe.send(Failed(str(error), error.exit_code))
        sys.exit(error.exit_code)
    except Exception as error:
        traceback.print_exc()
        pipe.send(Failed(f"the engine cannot start: {error!r}", 1))
        sys.exit(1)
    gc.collect()
    gc.freeze()  # objects from the boot stay for good: scanning them again and again would delay steps
    started = (*built.report.lines(), built.phases.line())
    pipe.send(Ready(built.tiers, started, built.report.steps, built.report.kernels, built.ranks.processes))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the HTTP process has ended
        loop = EngineLoop(built.engine, pipe, updates, stack=built.stack, hooks=built.hooks, warm=built.warm())
        loop.after_step = built.after_step
        loop.router = Router() if setup.has_fronts else None
        loop.traced = TracedRequests(built.engine) if setup.has_spans else None
        try:
            loop.run()
        except RankLost as error:
            pipe.end(str(error))
    built.hooks.close()
    built.close()


def _boot(setup: EngineSetup, updates: Updates, on_rank_lost: Callable[[str], None] = lambda _why: None) -> BuiltEngine:
    from quire.build.engine import build_engine, prepare

    prepared = prepare(setup.folder, setup.options, plan=decode(dict(setup.plan)))
    wrap = partial(FreezingRunner, file=setup.freeze_file) if setup.freeze_file is not None else _as_it_is
    return build_engine(
        prepared, listeners=(updates,), wrap=wrap, step_seconds=setup.step_seconds, on_rank_lost=on_rank_lost
    )


def _as_it_is(runner: Runner) -> Runner:
    return runner


class FreezingRunner:
    """A runner that stops while a file exists: a loss of progress, for drills."""

    def __init__(self, runner: Runner, file: Path) -> None:
        self._runner, self._file = runner, file

    def launch(self, step: Step) -> None:
        while self._file.exists():
            time.sleep(0.01)
        self._runner.launch(step)

    def collect(self) -> StepResult:
        return self._runner.collect()


class Updates:
    """Changes of requests since the previous tick; listens to the engine's events."""

    def __init__(self) -> None:
        self.new: dict[str, RequestUpdate] = {}
        self.tokens: dict[str, tuple[int, ...]] = {}
        """Of requests that are not in `new`."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, RequestEvent) and event.request == NAME:
            return  # no client has asked for it
        if isinstance(event, RequestEnded):
            self.new[event.request] = replace(self.of(event.request), ending=event.ending.value)
        elif isinstance(event, RequestEvent) and (tokens := reused_tokens(event)) is not None:
            self.new[event.request] = replace(self.of(event.request), hit_tokens=tokens)

    def of(self, name: str) -> RequestUpdate:
        return self.new.get(name) or RequestUpdate(name)

    def read(self, stream: Stream) -> None:
        if stream.failure:
            self.new[stream.request.name] = RequestUpdate(stream.request.name, refusal=stream.failure)
            return
        tokens = tuple(stream.take().tolist())
        if tokens and stream.request.name not in self.new and not stream.logprobs:
            self.tokens[stream.request.name] = tokens
        elif tokens:
            known, prompt = self.of(stream.request.name), _of_prompt(stream)
            logprobs = (*known.logprobs, *_taken(stream.logprobs, len(tokens)))
            self.new[known.name] = replace(
                known,
                tokens=(*known.tokens, *tokens),
                logprobs=logprobs,
                prompt_logprobs=known.prompt_logprobs or prompt,
            )

    def take(self) -> tuple[dict[str, tuple[int, ...]], tuple[RequestUpdate, ...]]:
        tokens, updates = self.tokens, tuple(self.new.values())
        self.tokens, self.new = {}, {}
        return tokens, updates


class EngineLoop:
    def __init__(
        self,
        engine: Engine,
        connection: SharedPipe | Connection,
        updates: Updates,
        clock: Callable[[], float] = time.monotonic,
        stack: Stack | None = None,
        hooks: HandOverHooks | None = None,
        *,
        warm: WarmWork | None = None,
    ) -> None:
        """`warm` None: nothing is computed ahead."""
        self.warm = warm
        self.engine, self.connection, self.updates, self.clock, self.stack = engine, connection, updates, clock, stack
        self.hooks = hooks or HandOverHooks()
        self.leases, self.forks = EngineLeases(engine), Forks(engine)
        self._streams: dict[str, Stream] = {}
        self._status_at = -STATUS_SECONDS
        self._was_idle = False
        self._books, self._audited_steps = "", -1
        self._audit_step: int | None = None
        self.router: Router | None = None
        """None: one process speaks HTTP."""
        self.traced: TracedRequests | None = None
        """None: no phases are collected."""
        self.after_step: Callable[[], None] = lambda: None

    def run(self) -> None:
        while True:
            self.turn()

    def turn(self) -> None:
        """Commands, one step, one tick. If there is nothing else to do: waits for commands, or audits."""
        is_audited = False
        if self._is_idle() and self._was_idle:
            wakeups = [self.hooks.wakeup.fileno()] if self.hooks.wakeup is not None else []
            is_audited = not wait([self.connection.fileno(), *wakeups], IDLE_TICK_SECONDS) and self._audit()
        while self.connection.poll():
            self._execute(command := self.connection.recv())
            if not isinstance(command, AskView):  # others may change what is held without a step
                self._audited_steps = -1
        if self.warm is not None and self.hooks.prefills is not None:
            self.warm.give_way()
        for request in self.hooks.turn():
            self._enter(request)
        self.engine.step() if self.warm is None else self.warm.step()
        self.after_step()
        ended = [one.name for one in self.updates.new.values() if one.ending and one.name in self._streams]
        over = [self._streams.pop(name) for name in ended]
        for stream in (*self.engine.running(), *over):
            self.updates.read(stream)
        self._tick(is_audited)

    def _tick(self, is_audited: bool) -> None:
        """Sends a tick; with the status every `STATUS_SECONDS`, after an audit, and whenever the engine becomes idle or
        busy: metrics never show an idle engine to a client that has its first token."""
        is_idle, now = self._is_idle(), self.clock()
        settled = self.engine.scheduler.steps - len(self.engine.scheduler.flying)
        tick = EngineTick(settled, is_idle, *self.updates.take())
        if now - self._status_at >= STATUS_SECONDS or is_idle != self._was_idle or is_audited:
            self._status_at = now
            tiers = self.stack.status() if self.stack is not None else ()
            tick = replace(
                tick,
                status=status_of(self.engine, self.warm),
                resident_bytes=_resident_bytes(),
                tiers=tiers,
                handed=self.hooks.counters(),
                books=self._books,
                is_audited=self._audited_steps == self.engine.scheduler.steps,
                audit_step=self._audit_step,
            )
        if self.traced is not None and (traces := self.traced.take()):
            tick = replace(tick, traces=traces)
        self._was_idle = is_idle
        self.connection.send(tick if self.router is None else self.router.routed(tick))

    def _is_idle(self) -> bool:
        return self.engine.scheduler.is_idle() and not self.warm

    def _audit(self) -> bool:
        """Audits an engine that has been idle for `IDLE_TICK_SECONDS`, once after its last step: for a pool of 128 GiB
        this takes milliseconds, which no answer and no request of a client that goes on at once should wait for."""
        if self._audited_steps == self.engine.scheduler.steps:
            return False
        self._books, self._audited_steps = "", self.engine.scheduler.steps
        self._audit_step = self._audited_steps
        try:
            for memory in self.engine.scheduler.memories:
                audit(memory, {})
        except BooksDoNotBalance as error:
            self._books = str(error)
        return True

    # ── commands ────────────────────────────────────────────────────────────

    def _execute(self, command: Command) -> None:
        match command:
            case Submit():
                self._submit(command)
            case Cancel(names):
                self._cancel(names)
            case CancelFront(front) if self.router is not None:
                self._cancel(self.router.names_of(front))
            case Explain(number, names):
                self.connection.send(Reply(number, tuple(told for name in names if (told := self._report(name)))))
            case AskLeases(number) | AskFork(number) | AskView(number):
                self.connection.send(Reply(number, self._answer(command)))
            case AskRoom(number, request):
                self.connection.send(Reply(number, ask(self.engine, request)))
            case DropCache(number, scope):
                keeping = self.stack.keeping() if self.stack is not None else []  # before each has this to forget too
                if self.warm is not None:
                    self.warm.forget(scope)
                self.connection.send(Reply(number, (self.engine.drop_cache(scope), keeping)))
            case EndTurn() | WarmUp():
                self._expect(command)

    def _submit(self, command: Submit) -> None:
        if self.router is not None:
            self.router.note(command)
        for request in command.requests:
            if self.traced is not None and command.span is not None:
                self.traced.begin(request.name, command.span)
            if not self.hooks.take(self.engine, request):
                self._enter(request)
            elif self.traced is not None:
                self.traced.hand_over(request.name)

    def _expect(self, command: EndTurn | WarmUp) -> None:
        if self.warm is None:
            return
        if isinstance(command, EndTurn):
            self.warm.end_turn(command.turn)
        else:
            self.warm.add(command.warm)

    def _answer(self, command: AskLeases | AskFork | AskView) -> LeaseReply | ForkReply | ViewReply:
        if isinstance(command, AskView):
            return answer_view(self.engine, command.question)
        if isinstance(command, AskFork):
            return answer_fork(self.forks, command.question)
        return self.leases.answer(command.question)

    def _cancel(self, names: tuple[str, ...]) -> None:
        if self.router is not None:
            self.router.forget(names)
        for name in names:
            self.hooks.cancel(name)
            self.engine.cancel(name)
            if self.traced is not None:
                self.traced.cancelled(name)

    def _enter(self, request: Request) -> None:
        if self.warm is not None:
            self.warm.give_way()
        try:
            self._streams[request.name] = stream = self.forks.note(self.engine.submit(request))
            self.leases.note(stream)
        except QuireError as error:
            full = isinstance(error, QueueFull)
            self.updates.new[request.name] = RequestUpdate(request.name, refusal=str(error), is_queue_full=full)
            if self.traced is not None:
                self.traced.refused(request.name)

    def _report(self, name: str) -> RequestReport | None:
        events, found = self.engine.history.of(name), explain(self.engine, name)
        if self.hooks.is_waiting(name):
            return RequestReport(name, Explanation(name, "waiting", Reason(Why.ANOTHER_ENGINE)))
        return RequestReport(name, found, events) if found or events else None


def _of_prompt(stream: Stream) -> tuple[Logprob, ...]:
    """Log-probabilities of the prompt's tokens, removed from the stream's; none if they were not requested, or taken
    before."""
    places = sorted(place for place in stream.logprobs if place < len(stream.request.prompt))
    return tuple(stream.logprobs.pop(place) for place in places)


def _taken(logprobs: dict[int, Logprob], count: int) -> list[Logprob]:
    """Log-probabilities of the next tokens, removed from `logprobs`; none if they were not requested."""
    return [logprobs.pop(place) for place in sorted(logprobs)[:count]]


def _resident_bytes() -> int:
    """The current value, if the system reports it; else the maximum so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
