"""Random requests for a small plan: shared prefixes, scopes, tenants, priorities, deadlines, stop tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np

from quire.check.scripts import script_for
from quire.core.request import Request
from quire.plan.plan import Plan

TENANTS, SCOPES = ("", "blue", "green"), ("", "", "", "secret")


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    step: int
    request: Request


def random_requests(random: Random, plan: Plan) -> list[Arrival]:
    """In the order of their arrival; some never fit."""
    families = [[random.randrange(10, 1000) for _ in range(plan.max_length)] for _ in range(random.randint(1, 3))]
    arrivals, step = [], 1
    pause = random.choice((0, 2, 8))
    for number in range(random.randint(6, 24)):
        step += random.randint(0, pause)
        arrivals.append(Arrival(step, _request(random, plan, f"r{number}", random.choice(families), step)))
    return arrivals


def _request(random: Random, plan: Plan, name: str, family: list[int], step: int) -> Request:
    length = max(2, plan.max_length - random.choice((0, 0, 3, plan.max_length // 2)))
    prompt = random.randint(1, length - 1)
    shared = random.choice((0, prompt, prompt, random.randint(0, prompt)))
    tokens = family[:shared] + [random.randrange(10, 1000) for _ in range(prompt - shared)]
    most = max(1, length - prompt)
    request = Request(
        name,
        np.array(tokens, dtype=np.int32),
        max_tokens=random.choice((1, random.randint(1, most), min(most, 6), most + random.choice((0, 0, 1, 9)))),
        priority=random.choice((0, 0, 1, 2)),
        scope=random.choice(SCOPES),
        tenant=random.choice(TENANTS),
        deadline=step + random.randint(0, 30) if random.random() < 0.15 else None,
    )
    return _with_stop(random, request) if random.random() < 0.2 else request


def _with_stop(random: Random, request: Request) -> Request:
    """Stops at a token that it will yield, or at one that it will not."""
    outputs = script_for(request).tokens[len(request.prompt) :].tolist()
    return replace(request, stop_tokens=(random.choice(outputs), 7))
