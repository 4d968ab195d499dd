"""The engine's process: takes orders between steps, turns the loop, tells what each step yielded.

It ends when the HTTP process does (its end of the pipe closes), and ignores signals: whoever speaks HTTP decides when
everything has ended.
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
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from quire.build.peers import Beside
from quire.cache.audit import BooksDoNotBalance, audit
from quire.core.dtypes import DType
from quire.core.errors import QueueFull, QuireError
from quire.core.events import Event, LoadFinished, RequestAdmitted, RequestEnded
from quire.core.logprobs import Logprob
from quire.core.reasons import Explanation, Reason, Why
from quire.core.request import Request
from quire.core.step import Runner, Step, StepResult
from quire.engine.engine import Engine, Stream
from quire.engine.status import status_of
from quire.plan.file import decode
from quire.serve import logs
from quire.serve.messages import (
    Beat,
    Came,
    Cancel,
    DropCache,
    EngineSetup,
    Explain,
    Failed,
    Order,
    Ready,
    Reply,
    Submit,
    Told,
)

if TYPE_CHECKING:
    from quire.build.assemble import Assembled
    from quire.tiers.stack import Stack

IDLE_BEAT_SECONDS = 0.1
STATUS_SECONDS = 0.5
"""How often a busy engine tells where it stands; one that becomes idle always does."""


def main(connection: Connection) -> None:
    """The first message is the setup."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logs.set_up()
    setup: EngineSetup = connection.recv()
    news = News()
    try:
        parts, tiers = _boot(setup, news)
    except QuireError as error:
        connection.send(Failed(str(error), error.exit_code))
        sys.exit(error.exit_code)
    except Exception as error:
        traceback.print_exc()
        connection.send(Failed(f"the engine cannot start: {error!r}", 1))
        sys.exit(1)
    gc.collect()
    gc.freeze()  # what a boot leaves stays for good: looking through it again and again would make steps wait
    connection.send(Ready(tiers, parts.started.lines(), parts.started.kernels))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # nobody listens any more
        EngineLoop(parts.engine, connection, news, stack=parts.stack, beside=parts.beside).run()
    parts.beside.close()
    if parts.stack is not None:
        parts.stack.close()


def _boot(setup: EngineSetup, news: News) -> tuple[Assembled, tuple[str, ...]]:
    """And a line for each tier."""
    from quire.build.assemble import assemble, tiers_from
    from quire.build.tiers import describe

    tiers = tiers_from(setup.tiers)
    plan = decode(dict(setup.plan))
    parts = assemble(
        Path(setup.folder),
        dtype=DType(setup.dtype),
        device=setup.device,
        compiled=setup.is_compiled,
        deterministic=setup.is_deterministic,
        rules=setup.rules,
        tiers=tiers,
        listeners=(news,),
        plan=plan,
        draft=None if setup.draft is None else Path(setup.draft),
        record=None if setup.record is None else Path(setup.record),
    )
    if setup.threads is not None:
        import torch

        torch.set_num_threads(setup.threads)
    if setup.freeze_file is not None:
        parts.engine.runner = FreezingRunner(parts.engine.runner, Path(setup.freeze_file))
    return parts, tuple(describe(plan, tiers, parts.stack.tiers)) if parts.stack else ()


class FreezingRunner:
    """A runner that stands still while a file exists: how progress is lost, for drills."""

    def __init__(self, runner: Runner, file: Path) -> None:
        self._runner, self._file = runner, file

    def launch(self, step: Step) -> None:
        while self._file.exists():
            time.sleep(0.01)
        self._runner.launch(step)

    def collect(self) -> StepResult:
        return self._runner.collect()


class News:
    """What is new about requests since the beat before; listens to the engine's events."""

    def __init__(self) -> None:
        self.came: dict[str, Came] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, RequestAdmitted) and not event.preemptions:
            self.came[event.request] = replace(self.of(event.request), hit_tokens=event.hit_tokens)
        elif isinstance(event, LoadFinished) and not event.preemptions:
            self.came[event.request] = replace(self.of(event.request), hit_tokens=event.tokens)
        elif isinstance(event, RequestEnded):
            self.came[event.request] = replace(self.of(event.request), ending=event.ending.value)

    def of(self, name: str) -> Came:
        return self.came.get(name) or Came(name)

    def read(self, stream: Stream) -> None:
        if stream.failure:
            self.came[stream.request.name] = Came(stream.request.name, refusal=stream.failure)
            return
        tokens = tuple(stream.take().tolist())
        if tokens:
            known = self.of(stream.request.name)
            logprobs = (*known.logprobs, *_taken(stream.logprobs, len(tokens)))
            self.came[known.name] = replace(known, tokens=(*known.tokens, *tokens), logprobs=logprobs)

    def take(self) -> tuple[Came, ...]:
        came, self.came = tuple(self.came.values()), {}
        return came


class EngineLoop:
    def __init__(
        self,
        engine: Engine,
        connection: Connection,
        news: News,
        clock: Callable[[], float] = time.monotonic,
        stack: Stack | None = None,
        beside: Beside | None = None,
    ) -> None:
        self.engine, self.connection, self.news, self.clock, self.stack = engine, connection, news, clock, stack
        self.beside = beside or Beside()
        self._streams: dict[str, Stream] = {}
        self._status_at = -STATUS_SECONDS
        self._was_idle = False

    def run(self) -> None:
        while True:
            self.turn()

    def turn(self) -> None:
        """Orders, one step, one beat. Waits for orders where there is nothing else to do."""
        is_idle = self.engine.scheduler.is_idle()
        if is_idle and self._was_idle:
            bells = [self.beside.bell.fileno()] if self.beside.bell is not None else []
            wait([self.connection, *bells], IDLE_BEAT_SECONDS)
        while self.connection.poll():
            self._obey(self.connection.recv())
        for request in self.beside.turn():
            self._enter(request)
        self.engine.step()
        ended = [came.name for came in self.news.came.values() if came.ending and came.name in self._streams]
        over = [self._streams.pop(name) for name in ended]
        for stream in (*self.engine.running(), *over):
            self.news.read(stream)
        self._beat()

    def _beat(self) -> None:
        """The status comes with it now and then, and whenever the engine becomes idle."""
        is_idle, now = self.engine.scheduler.is_idle(), self.clock()
        settled = self.engine.scheduler.steps - len(self.engine.scheduler.flying)
        beat = Beat(settled, is_idle, self.news.take())
        if now - self._status_at >= STATUS_SECONDS or is_idle > self._was_idle:
            self._status_at = now
            books = self._books() if is_idle else ""
            tiers = self.stack.status() if self.stack is not None else ()
            beat = replace(
                beat,
                status=status_of(self.engine),
                resident_bytes=_resident_bytes(),
                tiers=tiers,
                handed=self.beside.counted(),
                books=books,
            )
        self._was_idle = is_idle
        self.connection.send(beat)

    def _books(self) -> str:
        """Recounted whenever there is nothing else to do."""
        try:
            for memory in self.engine.scheduler.memories:
                audit(memory, {})
        except BooksDoNotBalance as error:
            return str(error)
        return ""

    # ── orders ────────────────────────────────────────────────────────────

    def _obey(self, order: Order) -> None:
        match order:
            case Submit(requests):
                for request in requests:
                    self._submit(request)
            case Cancel(names):
                for name in names:
                    self.beside.cancel(name)
                    self.engine.cancel(name)
            case Explain(number, names):
                self.connection.send(Reply(number, tuple(told for name in names if (told := self._told(name)))))
            case DropCache(number, scope):
                keeping = self.stack.keeping() if self.stack is not None else []  # before each has this to forget, too
                self.connection.send(Reply(number, (self.engine.drop_cache(scope), keeping)))

    def _submit(self, request: Request) -> None:
        """A deadline is given in seconds from now: clocks of two processes have nothing in common."""
        if request.deadline is not None:
            request = replace(request, deadline=self.clock() + request.deadline)
        if not self.beside.take(self.engine, request):
            self._enter(request)

    def _enter(self, request: Request) -> None:
        try:
            self._streams[request.name] = self.engine.submit(request)
        except QuireError as error:
            full = isinstance(error, QueueFull)
            self.news.came[request.name] = Came(request.name, refusal=str(error), is_queue_full=full)

    def _told(self, name: str) -> Told | None:
        events, found = self.engine.history.of(name), self.engine.explain(name)
        if self.beside.is_waiting(name):
            return Told(name, Explanation(name, "waiting", Reason(Why.ANOTHER_ENGINE)))
        return Told(name, found, events) if found or events else None


def _taken(logprobs: dict[int, Logprob], count: int) -> list[Logprob]:
    """Of the next tokens; none where nobody asked. What was read is not kept."""
    return [logprobs.pop(place) for place in sorted(logprobs)[:count]]


def _resident_bytes() -> int:
    """Now, where the system tells; else the most it ever was."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
