"""Warm work among requests: it is never in anyone's way, and what it leaves can be gone on from.

arrives     when a request does, warm work has neither a row nor a place in the queue: it is never the elder
launched    a step of warm work has no other row, and no request is there that it could hold up
waits       such a step has no more tokens than a chunk: a request waits for no longer
counted     none of its requests is an accepted one; its tokens are counted apart
leaves      the next one can start where it stood (`reused.py`), and reads what a cold run would have written
turns       what the next turn begins with stays; what lies beyond it goes before anything else
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from quire.check import state
from quire.check.actors import Actor
from quire.check.coverage import Mechanism
from quire.check.definitions import Violation
from quire.check.jobs import job_of
from quire.check.laws import Law
from quire.check.prefixes import Prefixes
from quire.check.progress import Accepted
from quire.check.requests import SCOPES, TENANTS
from quire.core.events import Event, RequestAccepted, StepLaunched
from quire.core.request import Request, Tokens
from quire.scheduler.scheduler import Scheduler
from quire.warm.work import NAME, PrefixWarmed, TurnEnd, Warm, WarmWork

if TYPE_CHECKING:
    from quire.check.episode import Episode


class Warmed(Law):
    def __init__(
        self,
        scheduler: Scheduler,
        accepted: Mapping[str, Accepted],
        work: WarmWork,
        requests: Mapping[str, Request],
        prefixes: Prefixes,
    ) -> None:
        self.scheduler, self.accepted, self.work, self.requests, self.prefixes = (
            scheduler, accepted, work, requests, prefixes,
        )  # fmt: skip
        self._launched = self._reported = 0
        """Tokens of warm work, by steps and by its own events."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestAccepted) and event.request != NAME:
            self._check_away(event.request)
        elif isinstance(event, StepLaunched):
            self._check_step()
        elif isinstance(event, PrefixWarmed):
            self._reported += event.tokens
            self._check_left(self.requests[NAME])

    def _check_away(self, name: str) -> None:
        if NAME in {*state.running(self.scheduler), *state.waiting(self.scheduler)}:
            raise Violation(f"request {name} arrives, and warm work is older")

    def _check_left(self, chunk: Request) -> None:
        """A request that begins with what it has computed can start after that."""
        boundary = self.prefixes.boundary(chunk, len(chunk.prompt))
        if boundary is None or not self.prefixes.is_proved(boundary):
            raise Violation(f"warm work has computed {len(chunk.prompt)} tokens, and none can start after them")

    def _check_step(self) -> None:
        step, row = state.latest_step(self.scheduler), state.running(self.scheduler).get(NAME)
        if row is None or row not in step.rows.tolist():
            return
        if self.accepted:
            raise Violation(f"step {step.number} is of warm work, and request {min(self.accepted)} is there")
        most = max(self.work.pace.tokens, self.scheduler.plan.reuse_unit_tokens)
        if step.tokens > most:
            raise Violation(f"step {step.number} has {step.tokens} tokens of warm work, {most} at most")
        self._launched += step.tokens

    def after_turn(self) -> None:
        if NAME in state.running(self.scheduler) and self.accepted:
            raise Violation(f"warm work has a row next to request {min(self.accepted)}")
        if self._reported > self._launched:
            raise Violation(f"warm work reports {self._reported} tokens and has computed {self._launched}")


AGAIN_RATE = 0.2
"""How often something similar is announced together with a prompt."""


class Warmers(Actor):
    """Turns end, and tokens of some request, or new ones after them, are announced."""

    rates = (0.0, 0.0, 0.0, 0.15)
    idle_rate = 0.4
    """How often it acts when no request is there any more."""

    def __init__(self, episode: Episode) -> None:
        super().__init__(episode)
        self.random, self.again = Random(f"warm {episode.seed}"), Random(f"warm again {episode.seed}")
        self.rate = self.random.choice(self.rates)

    def act(self) -> None:
        """A few turns without requests let warm work compute chunk after chunk."""
        rate = self.rate if self.episode.coming or self.episode.accepted else self.rate and self.idle_rate
        if self.random.random() < rate:
            self.do()

    def do(self) -> None:
        names = sorted(self.episode.runner.scripts.keys() - {NAME})
        if not names:
            return
        request = self.episode.requests[self.random.choice(names)]
        tokens = self.episode.runner.scripts[request.name].tokens.astype(np.int32)
        if self.random.random() < 0.5:
            warm = Warm(self._next(tokens), request.scope, request.tenant)
            both = [warm, *([self._similar(warm)] if self.again.random() < AGAIN_RATE else [])]
            for one in self.again.sample(both, len(both)):
                self._announce(one)
            self.episode.coverage.mechanism(self.episode.kinds, Mechanism.WARM)
        else:
            self._end_turn(request, tokens[: self.random.randint(1, len(tokens))])

    def _announce(self, warm: Warm) -> None:
        self.episode.announced.append(warm)
        before = self.episode.jobs.waiting()
        self.episode.warm.add(warm)
        self.episode.jobs.check_asked(before, [job_of(warm)])

    def _similar(self, warm: Warm) -> Warm:
        """A beginning of it, or the same in another scope or for another tenant."""
        tokens = warm.tokens[: self.again.randint(1, len(warm.tokens))]
        return Warm(tokens, self.again.choice((warm.scope, *SCOPES)), self.again.choice((warm.tenant, *TENANTS)))

    def _next(self, tokens: Tokens) -> Tokens:
        """Some of these tokens and others; now and then more than ever fits."""
        kept = self.random.randint(0, len(tokens))
        longest = self.scheduler.plan.max_length
        most = max(1, longest - kept + self.random.choice((-2, -2, -2, 3)))
        new = [10 + self.random.randrange(990) for _ in range(self.random.randint(1, min(most, 24)))]
        return np.concatenate([tokens[:kept], np.array(new, dtype=np.int32)])

    def _end_turn(self, request: Request, now: Tokens) -> None:
        recurring = tuple(self.random.randint(0, len(now)) for _ in range(self.random.choice((1, 1, 2))))
        nexts = tuple(self._next(now[:recurs]) for recurs in recurring)
        prefixes = Prefixes(self.scheduler, lambda _name: now)
        probe = Request("a turn", now, 1, scope=request.scope)
        announced = [Warm(one, request.scope, request.tenant) for one in nexts]
        self.episode.announced += announced
        before, jobs = [self._found(prefixes, probe, recurs) for recurs in recurring], self.episode.jobs.waiting()
        self.episode.warm.end_turn(TurnEnd(now, recurring, nexts, request.scope, request.tenant))
        self.episode.jobs.check_asked(jobs, [job_of(one) for one in announced])
        if [self._found(prefixes, probe, recurs) for recurs in recurring] != before:
            raise Violation(f"a turn of {request.name} ended, and what recurs of it is no longer there")
        self._check_order(prefixes, probe, recurring)
        self.episode.coverage.mechanism(self.episode.kinds, Mechanism.TURN)

    def _found(self, prefixes: Prefixes, probe: Request, most: int) -> int:
        self.scheduler.reuse.catch_up()  # as the engine does first
        return 0 if prefixes.is_disabled else next((one.tokens for one in prefixes.boundaries(probe, most)), 0)

    def _check_order(self, prefixes: Prefixes, probe: Request, recurring: tuple[int, ...]) -> None:
        """Where the next turn goes on stays, and the end of this one goes first, if nothing else needs it."""
        if prefixes.is_disabled:
            return
        for recurs in recurring:
            kept = next(prefixes.boundaries(probe, recurs), None)
            if kept is not None and state.is_evicted_first(self.scheduler, int(kept.path[-1])):
                raise Violation(f"{recurs} tokens recur, and the boundary at {kept.tokens} is to be evicted first")
        end = next(prefixes.boundaries(probe, len(probe.prompt)), None)
        if end is None or end.tokens <= max(recurring) or not state.is_of_no_use(self.scheduler, int(end.path[-1])):
            return
        if not state.is_evicted_first(self.scheduler, int(end.path[-1])):
            raise Violation(f"{max(recurring)} tokens recur, and the end at {end.tokens} is not to be evicted first")
