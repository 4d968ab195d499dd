"""One random system, driven from its first request until nothing is left, with every promise checked at every step."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import numpy as np

from quire.check import state
from quire.check.actors import ACTORS, StepFailed
from quire.check.agents import agents_requests
from quire.check.branches import Forkers, with_branches
from quire.check.claims import Claims
from quire.check.coverage import Coverage, Fault, Mechanism
from quire.check.definitions import Ints, Violation, fits_alone
from quire.check.doubles import ErringDrafter, PinningStore
from quire.check.fairness import Fairness
from quire.check.faulty import FaultyTier
from quire.check.host import HostTier
from quire.check.jobs import Jobs
from quire.check.large import EVERY, is_large, large_system, large_traffic
from quire.check.laws import Law
from quire.check.leaks import check_owners
from quire.check.lease_room import random_quotas
from quire.check.leases import Leased, with_leases, with_quotas
from quire.check.line import Line
from quire.check.lives import Lives
from quire.check.loading import Loading
from quire.check.prefixes import Prefixes
from quire.check.progress import Accepted, Progress
from quire.check.promises import check_books, check_ended, check_nothing_left, is_late
from quire.check.requests import (
    TENANTS,
    Arrival,
    Traffic,
    crowding_traffic,
    random_requests,
    returning_traffic,
    small_traffic,
    with_points,
)
from quire.check.reused import Reused
from quire.check.scripts import script_for
from quire.check.seats import Seats
from quire.check.sessions import Sessions
from quire.check.shadow import ShadowRunner
from quire.check.stages import Stages
from quire.check.staying import Capacity, Staying
from quire.check.storing import Storing
from quire.check.systems import (
    LOAD_SECONDS,
    random_system,
    with_agents,
    with_lease_sheets,
    with_leases_away,
    with_tight_leases,
    with_wide_units,
)
from quire.check.warming import Warmed, Warmers
from quire.core.errors import NeverFits, QueueFull
from quire.core.events import (
    CheckpointKept,
    Event,
    PagesCompacted,
    PrefixEvicted,
    RecordsStored,
    RequestAccepted,
    RequestAdmitted,
    RequestPreempted,
    TokensDrafted,
)
from quire.core.reasons import Why
from quire.core.request import Request, Tokens
from quire.engine.engine import Engine, Stream
from quire.prefix.leases import LeaseMoved
from quire.warm.pace import FixedPace
from quire.warm.work import NAME, Warm, WarmWork

REPORTED = {
    RequestPreempted: Mechanism.PREEMPTION,
    PrefixEvicted: Mechanism.EVICTION,
    PagesCompacted: Mechanism.COMPACTION,
    CheckpointKept: Mechanism.CHECKPOINT,
    RecordsStored: Mechanism.STORE,
    LeaseMoved: Mechanism.TIER_LEASE,
}
WARM_TURNS = 24
"""Turns after the last request, for warm work alone."""
STORED_RATE = 0.9
"""How often a tier has a prompt from earlier times."""


class Episode:
    def __init__(self, seed: int, coverage: Coverage) -> None:
        self.random, self.coverage, self.now, self.seed = Random(seed), coverage, 0, seed
        is_large_one, stages = is_large(seed), Random(f"stages {seed}")
        self.system = (
            large_system(self.random, seed // EVERY, stages) if is_large_one else random_system(self.random, stages)
        )
        self.system = with_wide_units(self.system, Random(f"wide {seed}"))
        leases = Random(f"leases {seed}")
        self.system = with_agents(with_lease_sheets(self.system, leases), Random(f"moving {seed}"))
        self.system = with_tight_leases(self.system, Random(f"tight {seed}"))
        self.system = with_leases_away(self.system, Random(f"away {seed}"))
        self.kinds = self.system.kinds
        self._longest_fits = fits_alone(self.system.plan, self.system.plan.max_length)
        self.runner = ShadowRunner()
        self.tier = self._tier(seed) if self.system.has_tier else None
        self.requests: dict[str, Request] = {}
        """By name, all that were submitted."""
        self.seats = Seats(self.requests, self.system.typical_output)
        self.laws: list[Law] = []
        self.drafter = ErringDrafter(Random(seed), self._script_in)
        self.engine = self._engine()
        self.scheduler = self.engine.scheduler
        self.scheduler.admission.typical_output = self.system.typical_output
        self.runner.attach(self.scheduler)
        self.store = PinningStore(self.scheduler, self.runner, self._unleased_spare())
        self.traffic = self._traffic(is_large_one)
        self.forking = Random(f"forks {seed}")
        self.quotas = random_quotas(Random(f"quotas {seed}"), self.system.plan, TENANTS)
        self.coming = self._coming(leases)
        self.loading = Loading(lambda: self.now, LOAD_SECONDS, self._has_less)
        self.leased = self._leased()
        self.progress = self._progress()
        self.runner.before_launch = self.progress.check_elder
        stages_law = Stages(self.scheduler, self.system.in_flight)
        self.runner.before_collect = stages_law.before_collect
        self.announced: list[Warm] = []
        """What warm work was asked for."""
        self.warm = WarmWork(self.engine, FixedPace(Random(f"pace {seed}").choice((1, 3, 8))))
        policy = self._policy()
        warmed = Warmed(self.scheduler, self.accepted, self.warm, self.requests, self.prefixes)
        self.jobs = Jobs(self.scheduler, self.warm, self.requests)
        self.laws += [Lives(), self.loading, self.progress, *policy, self.leased, warmed, self.jobs, stages_law]
        self.forkers = Forkers(self)
        self.actors = [*(actor(self) for actor in (*ACTORS, Warmers)), self.forkers]
        self.actors.append(Sessions(self))

    def _traffic(self, is_large_one: bool) -> Traffic:
        system = self.system
        is_leased = system.is_tight or system.is_away
        others = crowding_traffic if system.is_crowded else returning_traffic if is_leased else small_traffic
        return (large_traffic if is_large_one else others)(self.random, system.plan)

    def _coming(self, leases: Random) -> list[Arrival]:
        requests = random_requests(self.random, self.system.plan, self.traffic)
        if self.system.has_agents:
            requests = agents_requests(Random(f"agents {self.seed}"), self.system.plan)
            return with_quotas(requests, self.quotas)
        coming = with_quotas(with_leases(leases, requests, 0.7 if self.system.is_tight else None), self.quotas)
        return with_branches(self.forking, with_points(Random(f"points {self.seed}"), coming))

    def _leased(self) -> Leased:
        return Leased(
            self.scheduler,
            self.requests,
            self.runner.scripts,
            lambda: self.now,
            self.tier,
            quotas=self.quotas,
            has_failed=self.loading.has_failed,
        )

    def _unleased_spare(self) -> int:
        return self.system.spare - max(stage.lease_sheets for stage in self.system.plan.stages)

    @property
    def accepted(self) -> dict[str, Accepted]:
        return self.progress.accepted

    def _engine(self) -> Engine:
        system = self.system
        return Engine(
            system.plan,
            self.runner,
            rules=system.rules,
            tier=self.tier,
            drafter=self.drafter,
            keeper=None if isinstance(self.tier, FaultyTier) and self.tier.learns else self.tier,
            overlap=system.overlap,
            clock=lambda: float(self.now),
            pause=lambda: None,
            listeners=[self._on_event],
        )

    def _tier(self, seed: int) -> FaultyTier | HostTier:
        """Knows prompts from earlier times, or has what steps stored; most often it is the real stack."""
        clock, plan = lambda: float(self.now), self.system.plan
        tier: FaultyTier | HostTier
        if seed % 8 <= 3:
            learns = seed % 8 < 3 and not (self.system.is_away or self.system.has_agents)  # it would keep no leases
            tier = FaultyTier(self.random, clock, LOAD_SECONDS, plan, learns=learns)
        else:
            tier = HostTier(self.random, clock, LOAD_SECONDS, plan)
        self.runner.keeping = tier
        return tier

    def _progress(self) -> Progress:
        return Progress(
            self.scheduler,
            self.system.in_flight,
            LOAD_SECONDS * self.system.has_tier,
            lambda: self.runner.launched,
            lambda: self.now,
            self.loading.is_awaited_by,
        )

    def _policy(self) -> list[Law]:
        rules, scheduler = self.system.rules, self.scheduler
        capacity = Capacity(self.system.plan, lambda name: state.known_tokens(scheduler, name))
        prefixes = self.prefixes = Prefixes(scheduler, self.tokens_of)
        line = Line(scheduler, self.seats, capacity, prefixes, rules)
        typical = lambda: state.typical_output(scheduler)  # noqa: E731
        return [
            Staying(
                self.seats,
                capacity,
                typical,
                self._is_excused,
                lambda: line.shared,
                may_stay=line.may_stay,
                leased_sheets=self._leased_sheets,
            ),
            line,
            Claims(scheduler, self.seats, rules.policy, line.has_reason),
            Fairness(scheduler, self.seats, self.requests, rules),
            Reused(scheduler, prefixes, self.requests),
            Storing(scheduler),
        ]

    def _is_excused(self, elder: str) -> bool:
        """Reading pins, and chunks of others in flight while the elder has none, take pages that were not counted."""
        has_none = not state.is_in_flight(self.scheduler, elder)
        return bool(self.store.pins) or (has_none and bool(self.scheduler.flying))

    def _leased_sheets(self) -> list[int]:
        return self.leased.sheets()

    def _script_in(self, row: int) -> Ints:
        return self.runner.scripts[self.scheduler.rows.requests[row].name].tokens

    def _has_less(self, load: int) -> bool:
        return self.tier is not None and load in self.tier.fates.has_less

    def tokens_of(self, name: str) -> Tokens:
        return np.concatenate([self.requests[name].prompt, self.engine.outputs(name)])

    def run(self) -> None:
        while self.coming or self.accepted:
            self.step()
        for _ in range(WARM_TURNS if self.warm or self.announced else 0):
            self.step()
        self.warm.forget()
        while not self.scheduler.is_idle():
            self.step()
        self.store.unpin(self.now + 100)
        for law in self.laws:
            law.at_end()
        if isinstance(self.tier, HostTier):
            self.tier.steering.finish()
        if self.tier is not None:
            self.tier.check_empty()
        check_nothing_left(self.scheduler)

    def close(self) -> None:
        """Lets threads end that wait for their turn, whatever they still find."""
        if isinstance(self.tier, HostTier):
            with suppress(Exception):
                self.tier.steering.finish()

    def step(self) -> None:
        """One turn of the engine, with what the world does before and what must hold after it."""
        self.now += 1
        self.coverage.count_step(self.system)
        self._submit()
        for actor in self.actors:
            actor.act()
        for law in self.laws:
            law.before_turn()
        try:
            self.warm.step()
        except StepFailed:
            for actor in self.actors:
                actor.check_failed()
        self.collect_ended()
        check_books(self.scheduler)
        warm = {NAME: self.requests[NAME]} if NAME in self.engine.streams else {}
        check_owners(self.scheduler, {**{name: one.stream.request for name, one in self.accepted.items()}, **warm})
        self.store.check()
        for law in self.laws:
            law.after_turn()

    # ── requests come and go ──────────────────────────────────────────────

    def _submit(self) -> None:
        while self.coming and self.coming[0].step <= self.now and len(self.accepted) < self.traffic.at_once:
            if not self.submit(self.coming[0].request):
                return
            self.coming.pop(0)

    def submit(self, request: Request) -> bool:
        """False: the queue is full."""
        self.requests[request.name] = request
        try:
            if not is_late(request, self.now):
                self.jobs.give_way()
                stream = self.forkers.forks.note(self.engine.submit(request))
                self._accept(request, stream)
                self.leased.note_booked(request, stream.lease)
                if stream.lease is not None and stream.lease.refusal is None:
                    self.coverage.mechanism(self.kinds, Mechanism.RETAINED)
                if request.is_branch:
                    self.coverage.mechanism(self.kinds, Mechanism.BRANCH)
        except QueueFull:
            self._check_queue_is_full()
            return False
        except NeverFits:
            self._check_refused(request)
        return True

    def _fits_alone(self, request: Request) -> bool:
        """What fits at the longest length fits before: no moment of a shorter request takes more."""
        plan = self.system.plan
        is_sure = self._longest_fits and request.limit <= plan.max_length
        return is_sure or fits_alone(plan, request.limit)

    def _accept(self, request: Request, stream: Stream) -> None:
        if not self._fits_alone(request):
            raise Violation(f"request {request.name} of {request.limit} tokens was accepted and could not run alone")
        script = self.runner.scripts[request.name] = script_for(request)
        if isinstance(self.tier, FaultyTier) and self.random.random() < STORED_RATE:
            self.tier.learn(state.keys(self.scheduler, request.name), script.digests)
        self.progress.accept(stream)

    def _check_queue_is_full(self) -> None:
        if (waiting := len(self.seats.waiting())) < self.system.rules.queue_bound:
            raise Violation(f"the queue is said to be full with {waiting} requests in it")
        self.fault(Fault.QUEUE_FULL)

    def _check_refused(self, request: Request) -> None:
        if self._fits_alone(request):
            raise Violation(f"request {request.name} of {request.limit} tokens was refused and could run alone")
        self.coverage.mechanism(self.kinds, Mechanism.NEVER_FITS)

    def collect_ended(self) -> None:
        for name, one in list(self.accepted.items()):
            ended = one.stream.ended
            if ended is not None:
                check_ended(ended, self.runner.scripts[name], one.is_aborted, self.now)
                del self.accepted[name]
                if ended.ending.value == "deadline":
                    self.fault(Fault.DEADLINE)

    # ── what is counted ───────────────────────────────────────────────────

    def _on_event(self, event: Event) -> None:
        if isinstance(event, RequestAccepted) and event.request == NAME:
            self._note_chunk()
        for law in self.laws:
            law.on_event(event)
        self.seats.note(event)
        if isinstance(event, RequestPreempted) and event.reason.code is Why.NEEDS_ROW:
            self.coverage.mechanism(self.kinds, Mechanism.RETURN)
        if type(event) in REPORTED:
            self.coverage.mechanism(self.kinds, REPORTED[type(event)])
        elif isinstance(event, RequestAdmitted) and event.hit_tokens:
            self.coverage.mechanism(self.kinds, Mechanism.HIT)
        elif isinstance(event, TokensDrafted):
            if event.accepted:
                self.coverage.mechanism(self.kinds, Mechanism.ACCEPTED)
            if event.accepted < event.drafted:
                self.coverage.mechanism(self.kinds, Mechanism.REJECTED)

    def _note_chunk(self) -> None:
        """Chunks of warm work have one name, one after another."""
        request = self.requests[NAME] = state.queued_request(self.scheduler, NAME)
        self.runner.scripts[NAME] = script_for(request)
        self.prefixes.forget(NAME)
        self.coverage.mechanism(self.kinds, Mechanism.WARMED)

    def fault(self, fault: Fault) -> None:
        self.coverage.fault(self.kinds, self.system.rules.policy, fault)
