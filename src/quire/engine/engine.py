"""The loop: schedule, launch, collect, apply. While one step runs, the next is scheduled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quire.core.drafting import Drafter
from quire.core.errors import InputError
from quire.core.events import Listener
from quire.core.failures import RowFailures
from quire.core.logprobs import Logprob, StepLogprobs
from quire.core.request import Ending, Request, Tokens
from quire.core.rules import Rules
from quire.core.step import Runner, Step, StepResult
from quire.core.tier import RecordStore, Tier
from quire.engine.history import Counters, History
from quire.plan.plan import Plan
from quire.prefix.keys import scope_of
from quire.prefix.leases import Lease, LeaseAnswer, LeaseEnding, LeaseTerms
from quire.scheduler.scheduler import Ended, Scheduler


@dataclass(slots=True, eq=False)
class Stream:
    """The outputs of a request, for its caller to read. A stream that is not read costs nothing."""

    request: Request
    _engine: Engine
    _read: int = 0
    ended: Ended | None = field(default=None)
    failure: str = ""
    """Why the request could not continue, if that is how it ended."""
    lease: LeaseAnswer | None = None
    """Whether the lease that the request asks for is granted; None: it asks for none."""
    logprobs: dict[int, Logprob] = field(default_factory=dict)
    """By the token's position in the request, if requested; for the prompt from the second token on."""

    @property
    def ending(self) -> Ending | None:
        return self.ended.ending if self.ended else None

    def tokens(self) -> npt.NDArray[np.int32]:
        """All tokens generated so far."""
        return self.ended.outputs if self.ended else self._engine.outputs(self.request.name)

    def take(self) -> npt.NDArray[np.int32]:
        """The tokens generated since the last call."""
        new = self.tokens()[self._read :]
        self._read += len(new)
        return new

    def keep(self, logprobs: StepLogprobs, place: int) -> None:
        position, sampling = int(logprobs.positions[place]), self.request.sampling
        most = sampling.prompt_logprobs if position < len(self.request.prompt) else sampling.logprobs
        self.logprobs[position] = logprobs.at(place, most or 0)


class Engine:
    """Runs requests step by step: `submit` them, call `step` until it returns False, read the streams."""

    def __init__(
        self,
        plan: Plan,
        runner: Runner,
        *,
        rules: Rules | None = None,
        tier: Tier | None = None,
        keeper: RecordStore | None = None,
        drafter: Drafter | None = None,
        overlap: int = 2,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[], None] = lambda: time.sleep(0.001),
        listeners: Sequence[Listener] = (),
        failures: RowFailures | None = None,
    ) -> None:
        self.history, self.counters = History(), Counters()
        told: tuple[Listener, ...] = (self.history, self.counters, *listeners)
        self.overlap = plan.steps_in_flight(overlap)
        self.scheduler = Scheduler(plan, rules or Rules(), tier, told, drafter, keeper=keeper, overlap=self.overlap)
        self._keeper, self._is_measuring = keeper, keeper is not None
        self._launch_seconds: list[float] = []
        """Of the steps in flight: how long each launch took."""
        self.runner = runner
        self.clock = clock
        self.pause = pause
        """Called when the only thing to wait for is a load."""
        self.streams: dict[str, Stream] = {}
        self._deadlines: dict[str, float] = {}
        self.failures = failures or RowFailures()
        """Rows whose request cannot continue, as parts of the runner report them within a step."""

    def submit(self, request: Request) -> Stream:
        """Raises NeverFits or QueueFull within the call; otherwise the request will end."""
        if request.name in self.streams:
            raise InputError(f"a request named {request.name} is running or waiting: give each its own name")
        if request.retain is not None:
            self.scheduler.leasing.go_on(self.clock())
        stream = self.streams[request.name] = Stream(request, self, lease=self.scheduler.submit(request))
        if request.deadline is not None:
            self._deadlines[request.name] = request.deadline
        return stream

    def cancel(self, name: str) -> None:
        self._end(self.scheduler.cancel(name))

    def drop_cache(self, scope: str | None = None) -> int:
        """Drops the cached prefixes of a scope, or of all scopes, from the pool and from tiers. Running requests keep
        the pages that they hold; those can be dropped once the requests have given them to the cache. Returns how many
        units of prefixes were dropped from the pool."""
        reuse = self.scheduler.reuse
        reuse.catch_up()
        index, before = reuse.index, len(reuse.index.nodes)
        own = b"" if scope is None else scope_of(reuse.root_of(scope))
        self.scheduler.leasing.break_all(own, LeaseEnding.DROPPED)
        index.drop() if scope is None else index.drop_scope(own)
        if self._keeper is not None:
            self._keeper.forget(own)
        return before - len(index.nodes)

    def lease(self, terms: LeaseTerms, scope: str, tokens: Tokens, now: float | None = None) -> LeaseAnswer:
        """Leases the longest prefix of these tokens that is in the pool, or says what is possible. It stays usable for
        requests of the scope until it ends, in the pool or in a tier."""
        reuse = self.scheduler.reuse
        reuse.catch_up()
        now = self.clock() if now is None else now
        return self.scheduler.leasing.ask(terms, reuse.root_of(scope), tokens, now)

    def release_lease(self, name: str) -> bool:
        """False: there is no lease of this name."""
        return self.scheduler.leasing.release(name)

    def leases(self) -> list[Lease]:
        """Leases that are held, in no order."""
        return self.scheduler.leasing.held()

    def running(self) -> list[Stream]:
        """Streams of the requests that have a row: only these can generate tokens in a step."""
        return [self.streams[name] for name in self.scheduler.rows.row_of]

    def outputs(self, name: str) -> npt.NDArray[np.int32]:
        rows = self.scheduler.rows
        row = rows.row_of.get(name)
        if row is not None:
            return rows.outputs[row, : rows.output_counts[row]].copy()
        waiting = self.scheduler.queue.find(name)
        return waiting.outputs if waiting else np.empty(0, dtype=np.int32)

    def step(self) -> bool:
        """One iteration of the loop. False: nothing is left to do."""
        self._expire()
        step = self.scheduler.schedule(self.clock())
        if step is not None:
            self._launch(step)
        if self.scheduler.flying and (step is None or len(self.scheduler.flying) >= self.overlap):
            self._apply()
        elif step is None and len(self.scheduler.loads):
            self.pause()
        for row, why in self.failures.take():
            self._fail(row, why)
        return not self.scheduler.is_idle()

    def settle(self) -> None:
        """Waits for all steps in flight: every running request then has one token that is not computed yet."""
        while self.scheduler.flying:
            self._apply()

    def _apply(self) -> None:
        result = self._collect()
        if result.logprobs is not None:
            self._keep(self.scheduler.flying[0], result.logprobs)
        for ended in self.scheduler.apply(result):
            self._end(ended)

    def _fail(self, row: int, why: str) -> None:
        """Ends the request in this row."""
        request = self.scheduler.rows.requests.get(row)
        if request is not None:
            self.streams[request.name].failure = why
            self.cancel(request.name)

    def _launch(self, step: Step) -> None:
        begin = self._time()
        try:
            self.runner.launch(step)
        except BaseException as error:
            self._abandon(error)
            raise
        self._launch_seconds.append(self._time() - begin)

    def _collect(self) -> StepResult:
        """Waits for the oldest step. Its duration is the time spent in the runner; loads are compared with that."""
        begin, step = self._time(), self.scheduler.flying[0]
        try:
            while (result := self.runner.collect()).number < step.number:
                pass  # the result of a step that was abandoned
        except BaseException as error:
            self._abandon(error)
            raise
        seconds = self._launch_seconds.pop(0) + self._time() - begin
        if self._is_measuring and step.tokens and not (step.loads or step.stores):
            self.scheduler.meter.note(step.tokens, seconds)
        return result

    def _abandon(self, error: BaseException) -> None:
        """A step failed or was interrupted, and how far it came is unknown: every request that has a row ends. Waiting
        requests will run."""
        self._launch_seconds.clear()
        self.failures.take()
        for ended in self.scheduler.abandon():
            self.streams[ended.request.name].failure = f"a step that it was part of failed ({error!r}): ask again"
            self._end(ended)

    def _time(self) -> float:
        return self.clock() if self._is_measuring else 0.0

    def drain(self) -> None:
        """Runs until everything accepted has ended."""
        while self.step():
            pass

    def close(self) -> None:
        """Ends all requests now. Steps in flight are collected and discarded; stores to a tier are completed."""
        for name in list(self.streams):
            self.cancel(name)
        self.drain()

    def _keep(self, step: Step, logprobs: StepLogprobs) -> None:
        """Adds log-probabilities to the streams of rows that still have the request of this step."""
        rows = self.scheduler.rows
        for place, entry in enumerate(logprobs.entries.tolist()):
            row = int(step.rows[entry])
            if rows.epoch[row] == step.epochs[entry]:
                self.streams[rows.requests[row].name].keep(logprobs, place)

    def _expire(self) -> None:
        if self._deadlines:
            now = self.clock()
            for name in [name for name, deadline in self._deadlines.items() if deadline <= now]:
                self._end(self.scheduler.cancel(name, Ending.DEADLINE))

    def _end(self, ended: Ended | None) -> None:
        if ended is not None:
            self.streams.pop(ended.request.name).ended = ended
            self._deadlines.pop(ended.request.name, None)
