"""Random requests for a plan: shared prefixes, further turns, scopes, tenants, priorities, deadlines, stop tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np

from quire.check.scripts import script_for
from quire.core.request import GREEDY, Request
from quire.core.sampling import Sampling
from quire.plan.plan import Plan

TENANTS, SCOPES = ("", "blue", "green"), ("", "", "", "secret")
WEIGHTS = (1.0, 1.0, 2.0, 0.25)
"""A tenant's weight may change with each of its requests."""
FIRST_TOKEN = 10
MANY_TOKENS, FEW_TOKENS = 990, 2
"""Vocabularies: with few tokens prompts share their beginnings by chance, too."""
TURN_RATES = (0.2, 0.5, 0.9)
LOGPROBS_RATE = 0.05
"""How often a request wants log-probabilities of its prompt, and so reuses nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    step: int
    request: Request


@dataclass(frozen=True, slots=True)
class Traffic:
    """How many requests come, at most how many turns apart and how many at once, and the most tokens of each."""

    requests: int
    pause: int
    at_once: int
    most_prompt: int
    most_outputs: int
    turn_rate: float
    """How often a request goes on where an earlier one ended, or stood before that."""
    burst: int = 0
    """Requests that one tenant sends at once before others come: it has every row then."""


def crowding_traffic(random: Random, plan: Plan) -> Traffic:
    """One tenant takes all rows; then others come one by one."""
    most = plan.max_length
    return Traffic(32, random.choice((4, 8)), 64, most // 4, most, 0.2, 2 * plan.max_requests)


def small_traffic(random: Random, plan: Plan) -> Traffic:
    return Traffic(
        random.randint(6, 24),
        random.choice((0, 2, 8)),
        random.choice((2, 4, 64, 64)),
        plan.max_length,
        plan.max_length,
        random.choice(TURN_RATES),
    )


def returning_traffic(random: Random, plan: Plan) -> Traffic:
    """Short requests, several at once; most continue where an earlier one ended, or will."""
    most = max(4, plan.max_length // random.choice((2, 3, 4)))
    return Traffic(32, random.choice((0, 0, 2)), 64, most, most, 0.8)


def random_requests(random: Random, plan: Plan, traffic: Traffic) -> list[Arrival]:
    """In the order of their arrival; some never fit."""
    vocabulary = random.choice((MANY_TOKENS, MANY_TOKENS, FEW_TOKENS))
    families = [_tokens(random, vocabulary, plan.max_length) for _ in range(random.randint(1, 3))]
    arrivals: list[Arrival] = []
    step = 1
    for number in range(traffic.requests):
        step += 0 if number < traffic.burst else random.randint(0, traffic.pause)
        drawn = _drawn(random, min(traffic.most_prompt, plan.max_length), random.choice(families), vocabulary)
        if arrivals and random.random() < traffic.turn_rate:
            drawn = _further_turn(random, plan, random.choice(arrivals).request, vocabulary) or drawn
        request = _request(random, plan, f"r{number}", *drawn, step, traffic.most_outputs)
        arrivals.append(Arrival(step, replace(request, tenant=TENANTS[0]) if number < traffic.burst else request))
    return arrivals


def _tokens(random: Random, vocabulary: int, count: int) -> list[int]:
    return [FIRST_TOKEN + random.randrange(vocabulary) for _ in range(count)]


def _drawn(random: Random, longest: int, family: list[int], vocabulary: int) -> tuple[list[int], str]:
    """A prompt that begins as others do, and its scope."""
    length = max(2, longest - random.choice((0, 0, 3, longest // 2)))
    prompt = random.randint(1, length - 1)
    shared = random.choice((0, prompt, prompt, random.randint(0, prompt)))
    return family[:shared] + _tokens(random, vocabulary, prompt - shared), random.choice(SCOPES)


def _further_turn(random: Random, plan: Plan, before: Request, vocabulary: int) -> tuple[list[int], str] | None:
    """What an earlier request was asked and yields, as far as it goes or less, and something new; None: too long."""
    outputs, _ = script_for(before).expected(before)
    tokens = [*before.prompt.tolist(), *outputs[: random.choice((len(outputs), random.randint(0, len(outputs))))]]
    room = plan.max_length - 1 - len(tokens)
    if room < 1:
        return None
    return tokens + _tokens(random, vocabulary, random.randint(1, min(room, 12))), before.scope


def _request(
    random: Random, plan: Plan, name: str, prompt: list[int], scope: str, step: int, most_outputs: int
) -> Request:
    room = max(1, plan.max_length - len(prompt))
    most = min(most_outputs, room)
    request = Request(
        name,
        np.array(prompt, dtype=np.int32),
        max_tokens=random.choice((1, random.randint(1, most), min(most, 6), most, most, random.choice((1, 9)) + room)),
        priority=random.choice((0, 0, 1, 2)),
        scope=scope,
        tenant=random.choice(TENANTS),
        weight=random.choice(WEIGHTS),
        deadline=step + random.randint(0, 30) if random.random() < 0.15 else None,
        sampling=Sampling(prompt_logprobs=0) if random.random() < LOGPROBS_RATE else GREEDY,
    )
    return _with_stop(random, request) if random.random() < 0.2 else request


def _with_stop(random: Random, request: Request) -> Request:
    """Stops at a token that it will yield, or at one that it will not."""
    outputs = script_for(request).tokens[len(request.prompt) :].tolist()
    return replace(request, stop_tokens=(random.choice(outputs), 7))
