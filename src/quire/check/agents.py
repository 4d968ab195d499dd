"""Agents: sessions whose turns follow one another, each with a lease that moves to its end.

    turn 0 ──pause──▶ turn 1 ──▶ …        each begins with all that was said before
    lease 0 ─────────▶ lease 1            of one name; its time may be over before the next turn comes, or while it runs

A turn may also come before the one before has ended, or begin with less than was said. The sessions of an episode may
have one opening.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np

from quire.check.requests import FIRST_TOKEN, MANY_TOKENS, TENANTS, Arrival
from quire.check.scripts import script_for
from quire.core.request import Request, Retain
from quire.plan.plan import Plan

AGENTS, TURNS = (1, 2, 2, 3), 24
"""Sessions at a time, and turns of all of them."""
PAUSES = (2, 5, 12)
"""Turns of the engine between those of a session, at most."""
SECONDS = (1.5, 4.5, 12.5, 30.5, 60.5)
SHORTENED_RATE = 0.1
"""How often a turn begins with less than was said."""


class _Agent:
    """A session: what was said so far."""

    def __init__(self, random: Random, number: int, opening: list[int]) -> None:
        self._random, self._number, self._opening = random, number, opening
        self._tenant, self._scope = random.choice(TENANTS), random.choice(("", "", "secret"))
        self._before: Request | None = None

    def turn(self, name: str, plan: Plan) -> Request | None:
        """None: what was said leaves no room for another turn."""
        random, said = self._random, self._said()
        said += _tokens(random, random.randint(1, 5))
        room = plan.max_length - len(said)
        if room < 1:
            return None
        retain = Retain(random.choice(SECONDS), f"agent {self._number}")
        outputs = random.randint(1, min(room, 8))
        request = Request(name, np.array(said, dtype=np.int32), outputs, scope=self._scope, tenant=self._tenant)
        self._before = request = replace(request, retain=retain)
        return request

    def _said(self) -> list[int]:
        if self._before is None:
            return self._opening.copy()
        outputs, _ = script_for(self._before).expected(self._before)
        said = [*self._before.prompt.tolist(), *outputs]
        return said[: self._random.randint(1, len(said))] if self._random.random() < SHORTENED_RATE else said


def _tokens(random: Random, count: int) -> list[int]:
    return [FIRST_TOKEN + random.randrange(MANY_TOKENS) for _ in range(count)]


def agents_requests(random: Random, plan: Plan) -> list[Arrival]:
    """In the order of their arrival."""
    count, pause, step = random.choice(AGENTS), random.choice(PAUSES), 1
    opening = _tokens(random, random.choice((0, plan.max_length // 4, plan.max_length // 2)))
    agents, arrivals = [_Agent(random, number, opening) for number in range(count)], []
    for number in range(TURNS):
        place = random.randrange(count)
        request = agents[place].turn(f"r{number}", plan)
        if request is None:
            agents[place] = agent = _Agent(random, count + number, opening)
            request = agent.turn(f"r{number}", plan)
        if request is not None:
            arrivals.append(Arrival(step, request))
        step += random.randint(0, pause)
    return arrivals
