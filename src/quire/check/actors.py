"""What the world does to an engine between two turns: aborts, reading pins, dropped caches, compaction, tier news."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from quire.check import state
from quire.check.coverage import Fault, Mechanism
from quire.check.definitions import Violation
from quire.check.faulty import FaultyTier
from quire.check.host import HostTier
from quire.check.leaks import check_no_prefix_left
from quire.check.leases import ALL_SCOPES, Asked
from quire.check.promises import check_books
from quire.check.requests import SCOPES
from quire.core.step import Step
from quire.core.tier import SCOPE_BYTES
from quire.prefix.leases import LeaseRefusal, LeaseTerms

if TYPE_CHECKING:
    from quire.check.episode import Episode

TEACH_RATE = 0.2
"""How often a tier gets what a row has settled."""
RELEASE_RATE = 0.2
"""How often a lease is released rather than asked for."""
DRASTIC_DIVISOR = 10
SQUEEZE_RATE = 0.05
"""How often host memory forgets what no transfer needs."""


class Actor:
    def __init__(self, episode: Episode) -> None:
        self.episode, self.random, self.scheduler = episode, episode.random, episode.scheduler
        self.rate: float = self.random.choice(self.rates)
        if self.is_drastic and episode.system.is_large:
            self.rate /= DRASTIC_DIVISOR

    rates: tuple[float, ...] = (1.0,)
    """How often it acts, drawn once for an episode."""
    is_drastic = False
    """What it does hits everyone: less often where there are many."""

    def act(self) -> None:
        if self.random.random() < self.rate:
            self.do()

    def do(self) -> None: ...

    def abort(self, name: str) -> None:
        episode = self.episode
        episode.accepted[name].is_aborted = True
        episode.engine.cancel(name)
        episode.fault(Fault.ABORT)
        episode.collect_ended()

    def check_failed(self) -> None:
        """A step raised during the turn."""


class Aborts(Actor):
    rates = (0.0, 0.02, 0.1)

    def do(self) -> None:
        if self.episode.accepted:
            self.abort(self.random.choice(list(self.episode.accepted)))


class Pins(Actor):
    """A reader that pins a page for a few turns."""

    rates = (0.0, 0.3, 0.9)

    def act(self) -> None:
        self.episode.store.unpin(self.episode.now)
        super().act()

    def do(self) -> None:
        if self.episode.store.pin(self.random, self.episode.now + self.random.randint(1, 6)):
            self.episode.fault(Fault.PIN)


class Drops(Actor):
    """The cache of one scope, or of all, is dropped through the engine."""

    rates = (0.0, 0.02, 0.05)
    is_drastic = True

    def do(self) -> None:
        scope = self.random.choice((None, *SCOPES))
        self.episode.jobs.drop(scope)  # first, as the server does: a chunk that gives way leaves something
        before, own = state.nodes(self.scheduler).by_key, self._own(scope)
        self.episode.leased.dropping = ALL_SCOPES if scope is None else scope
        self.episode.engine.drop_cache(scope)
        self.episode.leased.dropping = None
        after = state.nodes(self.scheduler).by_key
        if left := [key for key in after if key.startswith(own)]:
            raise Violation(f"the cache of scope {scope!r} was dropped, and {len(left)} of its units are still there")
        if gone := [key for key in before if not key.startswith(own) and key not in after]:
            raise Violation(f"the cache of scope {scope!r} was dropped, and {len(gone)} units of others with it")
        if scope is None:
            check_no_prefix_left(self.scheduler)
        check_books(self.scheduler)
        self.episode.fault(Fault.DROP)

    def _own(self, scope: str | None) -> bytes:
        """What names of units begin with."""
        return b"" if scope is None else state.root(self.scheduler, scope)[:SCOPE_BYTES]


class Evictions(Actor):
    """The pool forgets every prefix, as if others had needed the room; tiers keep what they have."""

    rates = (0.0, 0.1, 0.3)
    is_drastic = True

    def __init__(self, episode: Episode) -> None:
        super().__init__(episode)
        self.rate = 0.1 if episode.system.is_away else self.rate

    def do(self) -> None:
        state.evict(self.scheduler)
        if not state.held_leases(self.scheduler):
            check_no_prefix_left(self.scheduler)
        elif left := set(state.nodes(self.scheduler).by_key.values()) - state.leased_nodes(self.scheduler):
            raise Violation(f"all that is not leased was evicted, and {len(left)} units of it are still there")


LEAVES_AFTER = 0.3
"""Chance that a request is aborted right after a compaction: what a tier reads of it has yet to move."""


class Compactions(Actor):
    """Compacts without need, so also while the cache holds pages; now and then a request leaves before they moved."""

    rates = (0.0, 0.02, 0.1)

    def do(self) -> None:
        is_filled = bool(state.nodes(self.scheduler).by_key)
        if state.compact(self.scheduler):
            check_books(self.scheduler)
            if is_filled:
                self.episode.coverage.mechanism(self.episode.kinds, Mechanism.CACHE_COMPACTED)
            running = sorted(state.running(self.scheduler).keys() & self.episode.accepted.keys())
            if running and self.random.random() < LEAVES_AFTER:
                self.abort(self.random.choice(running))


class StepFailed(Exception):
    """The device gives up."""


class FailingSteps(Actor):
    """A step raises when it is launched, or when its result is asked for: it is abandoned, with those in flight."""

    rates = (0.0, 0.01, 0.04)
    is_drastic = True

    def do(self) -> None:
        where = self.random.choice(("before_launch", "before_collect"))
        runner, check = self.episode.runner, getattr(self.episode.runner, where)

        def fail(*step: Step) -> None:
            setattr(runner, where, check)
            check(*step)
            self.episode.leased.is_failing = True
            raise StepFailed

        setattr(runner, where, fail)

    def check_failed(self) -> None:
        """Every request with a row has ended, and the pool has forgotten: copies that it needed may be missing."""
        self.episode.leased.is_failing = False
        if left := state.running(self.scheduler):
            raise Violation(f"a step was abandoned, and {min(left)} still has a row")
        check_no_prefix_left(self.scheduler)
        for one in self.episode.accepted.values():
            one.is_aborted = one.is_aborted or bool(one.stream.failure)
        self.episode.fault(Fault.STEP_FAILED)


class TierNews(Actor):
    """A tier gets what requests have settled, or goes on with its transfers; how loads end is counted."""

    def do(self) -> None:
        tier = self.episode.tier
        if isinstance(tier, HostTier):
            tier.steering.run()
            if self.random.random() < SQUEEZE_RATE:
                tier.squeeze()
            tier.check_blocks()
        elif tier is not None:
            self._teach(tier)
        for fate in tier.fates.take() if tier is not None else ():
            self.episode.fault(Fault(fate.value))

    def _teach(self, tier: FaultyTier) -> None:
        for name, row in state.running(self.scheduler).items():
            if self.random.random() < TEACH_RATE and not state.is_loading(self.scheduler, row):
                settled = int(self.scheduler.rows.settled[row])
                keys = state.keys(self.scheduler, name)
                tier.learn(keys, self.episode.runner.scripts[name].digests[:settled])


class Leasers(Actor):
    """Tokens of some request are leased if they are in the cache, or a lease is released."""

    rates = (0.0, 0.1, 0.5)

    def __init__(self, episode: Episode) -> None:
        self._asked = 0
        super().__init__(episode)
        self.rate = 0.9 if episode.system.is_away else self.rate

    def do(self) -> None:
        leased, episode = self.episode.leased, self.episode
        if leased.held and self.random.random() < RELEASE_RATE:
            leased.releasing = self.random.choice(sorted(leased.held))
            episode.engine.release_lease(leased.releasing)
            leased.releasing = ""
        elif episode.runner.scripts:
            self._ask(self.random.choice(sorted(episode.runner.scripts)))

    def _ask(self, name: str) -> None:
        episode, request = self.episode, self.episode.requests[name]
        tokens = episode.runner.scripts[name].tokens.astype(np.int32)
        tokens = tokens[: self.random.choice((len(tokens), self.random.randint(1, len(tokens))))]
        self._asked += 1
        seconds = (3.5, 20.5, 60.5) if episode.system.is_away else (0.5, 3.5, 20.5)
        asked = Asked(request.tenant, request.scope, tokens, self.random.choice(seconds))
        ask_for_lease(episode, f"asked {self._asked}", asked)


def ask_for_lease(episode: Episode, name: str, asked: Asked) -> None:
    """A client asks for a new lease, or for one that is held: then that moves to these tokens."""
    leased, before = episode.leased, episode.leased.held.get(name)
    terms = LeaseTerms(name, asked.owner, asked.seconds, quota_bytes=leased.quotas.get(asked.owner))
    terms = replace(terms, scope=state.root(episode.scheduler, asked.scope)[:SCOPE_BYTES])
    leased.asked[name] = asked
    answer = episode.engine.lease(terms, asked.scope, asked.tokens)
    leased.asked.pop(name, None)
    leased.check_answer(asked, answer, before)
    if answer.refusal is None:
        episode.coverage.mechanism(episode.kinds, Mechanism.LEASE)
    elif answer.refusal is LeaseRefusal.QUOTA:
        episode.coverage.mechanism(episode.kinds, Mechanism.QUOTA)


ACTORS: tuple[type[Actor], ...] = (Aborts, Pins, Drops, Evictions, Compactions, FailingSteps, TierNews, Leasers)
