"""Prompts that warm work is asked for: each is computed, or its end is reported with the reason.

asked      it waits; an earlier one of its tenant and scope that it continues goes, and no other
arrives    a request does: nothing is forgotten
dropped    the prompts of a scope go with its cache, and no others
ends       done: all of its tokens can be gone on from. Evicted: what its chunks have computed is not there any more
in turn    a tenant has no second chunk while another waits that waited before the first
goes on    each chunk of a prompt ends after those before: what was evicted is not computed again and again
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from quire.check.definitions import Violation
from quire.check.laws import Law
from quire.check.prefixes import Prefixes
from quire.core.events import Event, RequestAccepted
from quire.core.request import Request, Tokens
from quire.scheduler.scheduler import Scheduler
from quire.warm.work import MOST_JOBS, NAME, PrefixWarmed, Warm, WarmEnded, WarmWork


class Job(NamedTuple):
    tenant: str
    scope: str
    tokens: tuple[int, ...]


def job_of(warm: Warm) -> Job:
    return Job(warm.tenant, warm.scope, tuple(warm.tokens.tolist()))


class Jobs(Law):
    def __init__(self, scheduler: Scheduler, work: WarmWork, requests: Mapping[str, Request]) -> None:
        self._work, self._requests = work, requests
        self._longest = scheduler.plan.max_length
        self._has_boundaries = any(not kind.kind.grows for stage in scheduler.plan.stages for kind in stage.kinds)
        self._own: dict[str, Tokens] = {}
        self._prefixes = Prefixes(scheduler, lambda name: self._own[name])
        self._known: list[Job] = []
        """That waited when this was last looked at."""
        self._reached: dict[Job, int] = {}
        """Tokens that chunks have computed."""
        self._count = 0
        self._computing: Job | None = None
        self._latest, self._passed = "", set[str]()
        """The tenant of the latest chunk, and those that waited then and have waited since."""
        self._unfair = ""
        """Said after the turn: warm work takes what is raised while it submits for a refusal."""

    def waiting(self) -> list[Job]:
        return [job_of(job.warm) for own in self._work._waiting.values() for job in own]

    # ── asking ────────────────────────────────────────────────────────────

    def check_asked(self, before: list[Job], new: list[Job]) -> None:
        """`before`: what waited before warm work was asked for `new`, one after another."""
        expected = before
        for job in new:
            expected = [old for old in expected if old[:2] != job[:2] or old.tokens != job.tokens[: len(old.tokens)]]
            expected = [*expected, job]
            self._reached.pop(job, None)
        is_full = max(Counter(job.tenant for job in expected).values(), default=0) > MOST_JOBS
        if not is_full and Counter(self.waiting()) != Counter(expected):
            raise Violation(f"warm work is asked for {len(new)} prompts, and others wait than before and these")

    def give_way(self) -> None:
        """A request is about to arrive."""
        before = len(self._work)
        self._work.give_way()
        if len(self._work) != before:
            raise Violation(f"warm work gives way, and has {len(self._work)} prompts of {before}")

    def drop(self, scope: str | None) -> None:
        """The cache of a scope was dropped, or of all."""
        self.give_way()
        before = self.waiting()
        self._work.forget(scope)
        expected = [job for job in before if scope is not None and job.scope != scope]
        if Counter(self.waiting()) != Counter(expected):
            raise Violation(f"scope {scope!r} was dropped, and warm work has {len(self.waiting())} of {len(expected)}")
        self._passed.clear()

    # ── what must hold ────────────────────────────────────────────────────

    def before_turn(self) -> None:
        self._known, self._count = self.waiting(), len(self._work)

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestAccepted) and event.request == NAME:
            self._begin()
        elif isinstance(event, PrefixWarmed):
            self._go_on(len(self._requests[NAME].prompt))
        elif isinstance(event, WarmEnded):
            self._count -= 1
            if event.ending != "dropped":
                self._end(event.ending)

    def _taken(self) -> Job:
        """The prompt that is being looked at: it waits no longer."""
        now = self.waiting()
        taken = list((Counter(self._known) - Counter(now)).elements())
        if len(taken) != 1:
            raise Violation(f"warm work looks at a prompt, and {len(taken)} wait no longer")
        self._known = now
        return taken[0]

    def _begin(self) -> None:
        self._computing = self._taken()
        tenant = self._computing.tenant
        waiting = {job.tenant for job in self._known} - {tenant}
        if tenant == self._latest and (passed := self._passed & waiting):
            self._unfair = f"tenant {tenant!r} has two chunks of warm work, and {min(passed)!r} waits"
        self._latest, self._passed = tenant, waiting

    def _go_on(self, tokens: int) -> None:
        assert self._computing is not None, "a chunk has begun"
        if tokens <= (before := self._reached.get(self._computing, 0)):
            raise Violation(f"warm work has computed {before} tokens of a prompt, and {tokens} of it again")
        self._reached[self._computing] = tokens

    def _end(self, ending: str) -> None:
        job = self._taken()
        reached = self._reached.pop(job, 0)
        self._passed.discard(job.tenant)
        if self._prefixes.is_disabled:
            return
        unit = self._prefixes.unit
        size = len(job.tokens) if self._has_boundaries else len(job.tokens) // unit * unit
        if ending == "done" and size and not self._is_there(job, size):
            raise Violation(f"warm work is done with {len(job.tokens)} tokens, and none can start after {size}")
        if ending == "evicted" and (not reached or self._is_there(job, reached)):
            raise Violation(f"warm work says that {reached} tokens were evicted, and they are there")
        if ending == "refused" and len(job.tokens) < self._longest:
            raise Violation(f"warm work is refused {len(job.tokens)} tokens, {self._longest} at most")

    def _is_there(self, job: Job, tokens: int) -> bool:
        name = f"job {len(self._own)}"
        self._own[name] = np.array(job.tokens, dtype=np.int32)
        probe = Request(name, self._own[name], 1, scope=job.scope)
        boundary = self._prefixes.boundary(probe, tokens)
        return boundary is not None and self._prefixes.is_proved(boundary)

    def after_turn(self) -> None:
        if self._unfair:
            raise Violation(self._unfair)
        if len(self._work) != self._count:
            raise Violation(f"{len(self._work)} prompts are left to warm work, by its reports {self._count}")
