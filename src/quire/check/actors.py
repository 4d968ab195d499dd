"""What the world does to an engine between two turns: aborts, reading pins, dropped caches, compaction, tier news."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.check import state
from quire.check.coverage import Fault
from quire.check.definitions import Violation
from quire.check.doubles import FaultyTier
from quire.check.leaks import check_no_prefix_left
from quire.check.promises import check_books
from quire.check.requests import SCOPES
from quire.core.tier import SCOPE_BYTES

if TYPE_CHECKING:
    from quire.check.episode import Episode

TEACH_RATE = 0.2
"""How often a tier gets what a row has settled."""


class Actor:
    def __init__(self, episode: Episode) -> None:
        self.episode, self.random, self.scheduler = episode, episode.random, episode.scheduler
        self.rate: float = self.random.choice(self.rates)

    rates: tuple[float, ...] = (1.0,)
    """How often it acts, drawn once for an episode."""

    def act(self) -> None:
        if self.random.random() < self.rate:
            self.do()

    def do(self) -> None: ...


class Aborts(Actor):
    rates = (0.0, 0.02, 0.1)

    def do(self) -> None:
        episode = self.episode
        if episode.accepted:
            name = self.random.choice(list(episode.accepted))
            episode.accepted[name].is_aborted = True
            episode.engine.cancel(name)
            episode.fault(Fault.ABORT)
            episode.collect_ended()


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
    """Somebody drops the cache, of one scope or of everyone."""

    rates = (0.0, 0.0, 0.01, 0.05)

    def do(self) -> None:
        scope = self.random.choice((None, *SCOPES))
        before, own = state.nodes(self.scheduler).by_key, self._own(scope)
        self.episode.engine.drop_cache(scope)
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


class Compactions(Actor):
    """Pages are gathered though nobody lacks a sheet: so also while the cache holds some."""

    rates = (0.0, 0.02, 0.1)

    def do(self) -> None:
        if state.compact(self.scheduler):
            check_books(self.scheduler)


class TierNews(Actor):
    """A tier gets what requests have settled; how its loads will end is counted."""

    def do(self) -> None:
        tier = self.episode.tier
        if tier is None:
            return
        self._teach(tier)
        for fate in tier.take_fates():
            self.episode.fault(Fault(fate.value))
        tier.check_deadlines()

    def _teach(self, tier: FaultyTier) -> None:
        for name, row in state.running(self.scheduler).items():
            if self.random.random() < TEACH_RATE and not state.is_loading(self.scheduler, row):
                settled = int(self.scheduler.rows.settled[row])
                keys = state.keys(self.scheduler, name)
                tier.learn(keys, self.episode.runner.scripts[name].digests[:settled], self.episode.unit)


ACTORS: tuple[type[Actor], ...] = (Aborts, Pins, Drops, Compactions, TierNews)
