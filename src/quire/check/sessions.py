"""Clients with sessions: they lease what they have announced, move leases by their names, and release them at any time.

announced    leased while warm work computes it, so that a chunk ends where a lease does
beginning    of a leased prefix, leased as well: if one of them is lost, the other still holds
by name      a lease moves to other tokens, or stays if they are refused; none while its next turn is in progress
released     also while its next turn is in progress: then nothing is held when that ends
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np

from quire.check.actors import Actor, ask_for_lease
from quire.check.definitions import Violation
from quire.check.leases import Asked
from quire.check.requests import TENANTS
from quire.check.warming import Warmers
from quire.core.errors import InputError
from quire.core.request import Tokens
from quire.warm.work import NAME

if TYPE_CHECKING:
    from quire.check.episode import Episode

LATEST = 3
"""Prompts that were announced last, one of which is leased."""

RATE_WITH_WARM_WORK = 0.6
SECONDS = (3.5, 20.5, 60.5)


class Sessions(Actor):
    rates = (0.0, 0.0, 0.4)

    def __init__(self, episode: Episode) -> None:
        self.episode, self.random, self.scheduler = episode, Random(f"sessions {episode.seed}"), episode.scheduler
        self.rate = RATE_WITH_WARM_WORK if self._is_announced() else self.random.choice(self.rates)
        self._asked = 0

    def _is_announced(self) -> bool:
        return any(isinstance(actor, Warmers) and actor.rate for actor in self.episode.actors)

    def do(self) -> None:
        if self.episode.accepted:
            ways = (self._lease_announced, self._lease_beginning, self._move, self._release)
        else:
            ways = (self._lease_warmed, self._lease_warmed, self._lease_announced, self._release)
        self.random.choice(ways)()

    def _lease_warmed(self) -> None:
        """What the latest chunk of warm work has computed."""
        chunk = self.episode.requests.get(NAME)
        if chunk is not None:
            self._ask("warmed", self.random.choice(TENANTS), chunk.scope, chunk.prompt)

    def _lease_announced(self) -> None:
        if self.episode.announced:
            warm = self.random.choice(self.episode.announced[-LATEST:])
            self._ask("announced", warm.tenant, warm.scope, warm.tokens)

    def _lease_beginning(self) -> None:
        leased = self.episode.leased
        if leased.held:
            one = leased.held[self.random.choice(sorted(leased.held))]
            tokens = one.request.prompt[: self.random.randint(1, one.tokens)]
            self._ask("beginning", one.request.tenant, one.request.scope, tokens)

    def _ask(self, what: str, owner: str, scope: str, tokens: Tokens) -> None:
        self._asked += 1
        asked = Asked(owner, scope, tokens, self.random.choice(SECONDS))
        ask_for_lease(self.episode, f"{what} {self._asked}", asked)

    def _move(self) -> None:
        """Asks for a lease that is there, for more of the tokens that it begins, or fewer."""
        leased = self.episode.leased
        if not leased.held:
            return
        name = self.random.choice(sorted(leased.held))
        probe, seconds = leased.held[name].request, self.random.choice(SECONDS)
        tokens = self._tokens(name)
        try:
            ask_for_lease(self.episode, name, Asked(probe.tenant, probe.scope, tokens, seconds))
        except InputError:
            if name not in leased.booked:
                raise
            del leased.asked[name]
        else:
            if name in leased.booked:
                raise Violation(f"lease {name} moves, and request {leased.booked[name]} will move it")

    def _tokens(self, name: str) -> Tokens:
        leased, scripts = self.episode.leased, self.episode.runner.scripts
        one = leased.held[name]
        longer = [
            script.tokens
            for request, script in sorted(scripts.items())
            if name in leased.begun_by(self.episode.requests[request], script.tokens)
        ]
        tokens = self.random.choice(longer) if longer else one.request.prompt
        least = 1 if self.random.random() < 0.3 else one.tokens
        return tokens[: self.random.randint(least, len(tokens))].astype(np.int32)

    def _release(self) -> None:
        leased = self.episode.leased
        names = sorted({*leased.held, *leased.booked})
        if names:
            leased.releasing = self.random.choice(names)
            if not self.episode.engine.release_lease(leased.releasing):
                raise Violation(f"lease {leased.releasing} is there, and cannot be released")
            if leased.releasing in {*leased.held, *leased.booked}:
                raise Violation(f"lease {leased.releasing} was released, and is not over")
            leased.releasing = ""
