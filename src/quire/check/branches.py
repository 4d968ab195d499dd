"""Forks and branches as the world asks for them: copies of a prompt that come together, and requests that continue
running or ended ones from any of their tokens.

tokens    a fork has its parent's first tokens, and a fork of what never was is refused
pages     the shadow runner reads them; a fork at a running request's end finds all of it if there was room to copy
length    it is accepted if it could run alone, whatever it shares (`Episode.accept`)
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from quire.check import state
from quire.check.actors import Actor, StepFailed
from quire.check.coverage import Mechanism
from quire.check.definitions import Violation
from quire.check.prefixes import Prefixes, find_known
from quire.check.requests import Arrival
from quire.core.request import Request, Tokens
from quire.forks.forks import ForkRefused, Forks
from quire.warm.work import NAME

if TYPE_CHECKING:
    from quire.check.episode import Episode

BRANCH_RATES = (0.0, 0.0, 0.3)
"""How many of an episode's requests come several times, as branches of one prompt."""
MOST_BRANCHES = 5
MOST_FORKS = 12
"""In one episode, which would go on for ever otherwise."""
WRONG_RATE = 0.1
"""How often a fork is asked for that must be refused."""


def with_branches(random: Random, arrivals: list[Arrival]) -> list[Arrival]:
    """Some of them come several times at once, each with outputs of its own."""
    rate = random.choice(BRANCH_RATES)
    return [one for arrival in arrivals for one in (_several(random, arrival) if random.random() < rate else [arrival])]


def _several(random: Random, arrival: Arrival) -> list[Arrival]:
    request = replace(arrival.request, is_branch=True, stop_tokens=())
    more = [replace(request, name=f"{request.name}.{n}") for n in range(1, random.randint(2, MOST_BRANCHES))]
    return [replace(arrival, request=one) for one in (request, *more)]


class Forkers(Actor):
    """Continues some request, running or ended, from one of its tokens."""

    rates = (0.0, 0.1, 0.3)

    def __init__(self, episode: Episode) -> None:
        self.episode, self.random, self.scheduler = episode, episode.forking, episode.scheduler
        self.rate = self.random.choice(self.rates)
        self.forks = Forks(episode.engine)
        self.prefixes = Prefixes(episode.scheduler, episode.tokens_of)
        self._asked = 0

    def do(self) -> None:
        names = sorted(self.episode.runner.scripts.keys() - {NAME})
        is_enough = self._asked == MOST_FORKS or len(self.episode.accepted) >= self.episode.traffic.at_once
        if not names or is_enough:
            return
        parent = self.episode.requests[self.random.choice(names[-8:])]
        if self.random.random() < WRONG_RATE:
            self._check_refusals(parent)
            return
        try:
            tokens = self._tokens(parent)
        except StepFailed:
            for actor in self.episode.actors:
                actor.check_failed()
            self.episode.collect_ended()
            return
        self.episode.collect_ended()
        if tokens is not None:
            self._submit(parent, tokens)

    def _tokens(self, parent: Request) -> Tokens | None:
        """What the fork continues, compared with the parent's script; None: the parent is forgotten, or was refused."""
        name, script = parent.name, self.episode.runner.scripts[parent.name].tokens
        known = find_known(self.scheduler, name) or len(parent.prompt)
        at = self.random.choice((None, len(parent.prompt), self.random.randint(1, known), known - min(known - 1, 2)))
        is_running = name in state.running(self.scheduler)
        try:
            tokens = self.forks.tokens(name, at, parent.tenant, parent.scope)
        except ForkRefused as refused:
            if is_running or refused.code != "fork_not_found":
                raise Violation(f"a fork of {name} at {at} is refused: {refused}") from None
            return None
        if not np.array_equal(tokens, script[: len(tokens)]) or (at is not None and len(tokens) != at):
            raise Violation(f"a fork of {name} at {at} has {len(tokens)} tokens, and not those of {name}")
        if at is None:
            self._check_end(parent, len(tokens))
        return tokens

    def _check_end(self, parent: Request, at: int) -> None:
        """A running request keeps what a fork at its end needs, unless there is no room to copy what it writes to."""
        row = state.running(self.scheduler).get(parent.name)
        if row is None or at < 2 or self.prefixes.is_disabled or state.is_loading(self.scheduler, row):
            return
        if (computed := int(self.scheduler.rows.computed[row])) >= at:
            raise Violation(f"request {parent.name} is forked at its end of {at} tokens, and has {computed} computed")
        if computed < at - 1:
            return
        boundary = self.prefixes.boundary(parent, at - 1)
        is_kept = boundary is not None and self.prefixes.is_proved(boundary)
        if is_kept:
            self.episode.coverage.mechanism(self.episode.kinds, Mechanism.FORK)
        elif self.prefixes.has_copies(at - 1):
            raise Violation(f"request {parent.name} is forked after {at} tokens, and none can start after {at - 1}")

    def _check_refusals(self, parent: Request) -> None:
        known = find_known(self.scheduler, parent.name)
        wrong = [("nobody", 1, parent.tenant, parent.scope), (parent.name, 1, parent.tenant, parent.scope + "!")]
        wrong.append((parent.name, 1, parent.tenant + "!", parent.scope))
        if known is not None:
            wrong += [
                (parent.name, known + 1, parent.tenant, parent.scope),
                (parent.name, 0, parent.tenant, parent.scope),
            ]
        for one in wrong:
            try:
                self.forks.tokens(*one)
            except ForkRefused:
                continue
            raise Violation(f"a fork of {one[0]} at {one[1]} for tenant {one[2]!r} and scope {one[3]!r} is granted")

    def _submit(self, parent: Request, tokens: Tokens) -> None:
        room = self.scheduler.plan.max_length - len(tokens)
        outputs = self.random.choice((1, 3, max(1, room), room + 3)) if room > -3 else 1
        self._asked += 1
        for copy in range(self.random.choice((1, 1, 2, 3))):
            name = f"{parent.name}/{self._asked}.{copy}"
            request = replace(parent, name=name, prompt=tokens, max_tokens=max(1, outputs), is_branch=True)
            self.episode.submit(replace(request, deadline=None, retain=None, stop_tokens=()))
