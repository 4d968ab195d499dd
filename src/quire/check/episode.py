"""One random system, driven from its first request until nothing is left, with every promise checked at every step."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from quire.check.coverage import Coverage, Fault, Mechanism
from quire.check.definitions import Ints, Violation, fits_alone
from quire.check.doubles import ErringDrafter, FaultyTier, PinningStore
from quire.check.keeping import KeepingTier
from quire.check.leaks import check_owners
from quire.check.promises import check_books, check_ended, check_nothing_left, is_late
from quire.check.requests import random_requests
from quire.check.scripts import script_for
from quire.check.shadow import ShadowRunner
from quire.check.systems import LOAD_SECONDS, random_system
from quire.core.errors import NeverFits, QueueFull
from quire.core.events import Event, What
from quire.core.request import Request
from quire.core.step import Step
from quire.engine.engine import Engine, Stream

TOLD = {
    What.PREEMPTED: Mechanism.PREEMPTION,
    What.EVICTED: Mechanism.EVICTION,
    What.COMPACTED: Mechanism.COMPACTION,
    What.CHECKPOINT: Mechanism.CHECKPOINT,
    What.STORED: Mechanism.STORE,
}


TEACH_RATE, STORED_RATE = 0.2, 0.5
"""How often a tier gets what a row has settled, and has a prompt from earlier times."""
MOST_IDLE_TURNS = 1
"""A turn that finds the elder's load over may be spent on that."""


@dataclass(slots=True, eq=False)
class Accepted:
    """A request that must end, and by which launch."""

    stream: Stream
    last_launch: int
    is_aborted: bool = False


class Episode:
    def __init__(self, seed: int, coverage: Coverage) -> None:
        self.random, self.coverage, self.now = Random(seed), coverage, 0
        self.system = random_system(self.random)
        self.kinds = self.system.kinds
        self.runner = ShadowRunner()
        self.runner.before_launch = self._check_elder
        self.tier = self._tier(seed) if self.system.has_tier else None
        self.drafter = ErringDrafter(Random(seed), self._script_in)
        self.engine = self._engine()
        self.scheduler = self.engine.scheduler
        self.scheduler.typical_output = self.system.typical_output
        self.runner.attach(self.scheduler)
        self.store = PinningStore(self.scheduler, self.runner, self.system.spare)
        self.accepted: dict[str, Accepted] = {}
        """Not ended yet, in the order of arrival: the first one is the elder."""
        self.coming = random_requests(self.random, self.system.plan)
        self.unit = self.scheduler.reuse.index.unit
        self.idle_turns = 0
        self.abort_rate = self.random.choice((0.0, 0.02, 0.1))
        self.pin_rate = self.random.choice((0.0, 0.3, 0.9))

    def _engine(self) -> Engine:
        system = self.system
        return Engine(
            system.plan,
            self.runner,
            rules=system.rules,
            tier=self.tier,
            drafter=self.drafter,
            keeper=self.runner.keeping,
            overlap=system.overlap,
            clock=lambda: float(self.now),
            pause=lambda: None,
            listeners=[self._hear],
        )

    def _tier(self, seed: int) -> FaultyTier:
        """Every second one has what steps stored; the others know of prompts from earlier times."""
        if seed % 2:
            self.runner.keeping = KeepingTier(self.random, lambda: float(self.now), LOAD_SECONDS, self.system.plan)
            return self.runner.keeping
        return FaultyTier(self.random, lambda: float(self.now), LOAD_SECONDS, self.runner.staged)

    def _script_in(self, row: int) -> Ints:
        return self.runner.scripts[self.scheduler.rows.requests[row].name].tokens

    def run(self) -> None:
        while self.coming or self.accepted or not self.scheduler.is_idle():
            self.step()
        self.store.unpin(self.now + 100)
        check_nothing_left(self.scheduler)

    def step(self) -> None:
        """One turn of the engine, with what the world does before and what must hold after it."""
        self.now += 1
        self.coverage.count_step(self.system)
        self._submit()
        self._disturb()
        launched = self.runner.launched
        self.engine.step()
        self._collect_ended()
        check_books(self.scheduler)
        check_owners(self.scheduler, {name: one.stream.request for name, one in self.accepted.items()})
        self.store.check()
        self._check_progress(launched)

    # ── the world ─────────────────────────────────────────────────────────

    def _submit(self) -> None:
        while self.coming and self.coming[0].step <= self.now:
            request = self.coming[0].request
            try:
                if not is_late(request, self.now):
                    self._accept(request, self.engine.submit(request))
            except QueueFull:
                self._check_queue_is_full()
                return
            except NeverFits:
                self._check_refused(request)
            self.coming.pop(0)

    def _accept(self, request: Request, stream: Stream) -> None:
        if not fits_alone(self.system.plan, request.limit):
            raise Violation(f"request {request.name} of {request.limit} tokens was accepted and could not run alone")
        script = self.runner.scripts[request.name] = script_for(request)
        waiting = self.scheduler.queue.find(request.name)
        if self.tier is not None and waiting is not None and self.random.random() < STORED_RATE:
            self.tier.learn(waiting.keys, script.digests, self.unit)
        steps = request.limit + sum(one.stream.request.limit for one in self.accepted.values())
        waits = (len(self.accepted) + 1) * (int(LOAD_SECONDS) + 2) * self.system.has_tier
        overlap = self.system.overlap
        self.accepted[request.name] = Accepted(stream, self.runner.launched + overlap * (steps + waits + 1) - 1)

    def _disturb(self) -> None:
        self.store.unpin(self.now)
        if self.accepted and self.random.random() < self.abort_rate:
            name = self.random.choice(list(self.accepted))
            self.accepted[name].is_aborted = True
            self.engine.cancel(name)
            self._fault(Fault.ABORT)
            self._collect_ended()
        if self.random.random() < self.pin_rate and self.store.pin(self.random, self.now + self.random.randint(1, 6)):
            self._fault(Fault.PIN)

        if self.tier is not None:
            self._teach(self.tier)

    def _teach(self, tier: FaultyTier) -> None:
        """Now and then the tier gets what a request has settled."""
        for row, ticket in self.scheduler.tickets.items():
            if self.random.random() < TEACH_RATE and not self.scheduler.rows.is_loading[row]:
                settled = int(self.scheduler.rows.settled[row])
                tier.learn(ticket.keys, self.runner.scripts[ticket.request.name].digests[:settled], self.unit)
        for fate in tier.take_fates():
            self._fault(Fault(fate.value))
        tier.check_deadlines()

    def _collect_ended(self) -> None:
        for name, one in list(self.accepted.items()):
            ended = one.stream.ended
            if ended is not None:
                check_ended(ended, self.runner.scripts[name], one.is_aborted, self.now)
                del self.accepted[name]
                if ended.ending.value == "deadline":
                    self._fault(Fault.DEADLINE)

    def _hear(self, event: Event) -> None:
        if event.what in TOLD:
            self.coverage.mechanism(self.kinds, TOLD[event.what])
        elif event.what is What.ADMITTED and event.numbers["hit_tokens"]:
            self.coverage.mechanism(self.kinds, Mechanism.HIT)
        elif event.what is What.DRAFTED:
            if event.numbers["accepted"]:
                self.coverage.mechanism(self.kinds, Mechanism.ACCEPTED)
            if event.numbers["accepted"] < event.numbers["drafted"]:
                self.coverage.mechanism(self.kinds, Mechanism.REJECTED)

    def _fault(self, fault: Fault) -> None:
        self.coverage.fault(self.kinds, self.system.rules.policy, fault)

    # ── promises ──────────────────────────────────────────────────────────

    def _check_elder(self, step: Step) -> None:
        """Progress: with nothing else in flight, a step computes at least one token of the elder."""
        elder = next((name for name, one in self.accepted.items() if one.stream.ended is None), None)
        if elder is None or len(self.scheduler.flying) > 1 or (self.tier and self.tier.is_awaited_by(elder)):
            return
        row = self.scheduler.rows.row_of.get(elder)
        if row is None or row not in step.rows.tolist():
            raise Violation(f"nothing is in flight and step {step.number} computes no token of the elder, {elder}")

    def _check_progress(self, launched: int) -> None:
        """Nobody waits longer than the tokens of all who came before allow, and a deadline is one."""
        for name, one in self.accepted.items():
            if self.runner.launched > one.last_launch:
                raise Violation(
                    f"request {name} has not ended after {self.runner.launched} steps, {one.last_launch} allowed"
                )
            if is_late(one.stream.request, self.now):
                raise Violation(f"request {name} runs at {self.now}, past its deadline {one.stream.request.deadline}")
        elder = next(iter(self.accepted), "")
        if self.runner.launched > launched or self.scheduler.flying or (self.tier and self.tier.is_awaited_by(elder)):
            self.idle_turns = 0
        elif elder:
            self.idle_turns += 1
            if self.idle_turns > MOST_IDLE_TURNS:
                raise Violation(f"stuck: nothing is in flight or launched turn after turn, and {elder} has not ended")

    def _check_queue_is_full(self) -> None:
        if len(self.scheduler.queue) < self.system.rules.queue_bound:
            raise Violation(f"the queue is said to be full with {len(self.scheduler.queue)} requests in it")
        self._fault(Fault.QUEUE_FULL)

    def _check_refused(self, request: Request) -> None:
        if fits_alone(self.system.plan, request.limit):
            raise Violation(f"request {request.name} of {request.limit} tokens was refused and could run alone")
        self.coverage.mechanism(self.kinds, Mechanism.NEVER_FITS)
