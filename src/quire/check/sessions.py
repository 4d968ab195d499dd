"""Clients with sessions: they lease what they have announced, move leases by their names, and release them at any time.

announced    leased while warm work computes it, so that a chunk ends where a lease does
by name      a lease moves to other tokens, or stays if they are refused; none while its next turn is in progress
released     also while its next turn is in progress: then nothing is held when that ends
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np

from quire.check.actors import Actor, ask_for_lease
from quire.check.definitions import Violation
from quire.core.errors import InputError
from quire.core.request import Tokens

if TYPE_CHECKING:
    from quire.check.episode import Episode

LATEST = 3
"""Prompts that were announced last, one of which is leased."""


class Sessions(Actor):
    rates = (0.0, 0.0, 0.4)

    def __init__(self, episode: Episode) -> None:
        self.episode, self.random, self.scheduler = episode, Random(f"sessions {episode.seed}"), episode.scheduler
        self.rate = self.random.choice(self.rates)
        self._asked = 0

    def do(self) -> None:
        self.random.choice((self._lease_announced, self._lease_announced, self._move, self._release))()

    def _lease_announced(self) -> None:
        if self.episode.announced:
            warm = self.random.choice(self.episode.announced[-LATEST:])
            self._asked += 1
            seconds = self.random.choice((3.5, 20.5))
            ask_for_lease(self.episode, f"announced {self._asked}", warm.tenant, warm.scope, warm.tokens, seconds)

    def _move(self) -> None:
        """Asks for a lease that is there, for more of the tokens that it begins, or fewer."""
        leased = self.episode.leased
        if not leased.held:
            return
        name = self.random.choice(sorted(leased.held))
        probe, seconds = leased.held[name].request, self.random.choice((3.5, 20.5))
        tokens = self._tokens(name)
        try:
            ask_for_lease(self.episode, name, probe.tenant, probe.scope, tokens, seconds)
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
