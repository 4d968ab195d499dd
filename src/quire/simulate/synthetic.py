"""Made-up traces, each from a seed: these four sorts, and those of `sharing`.

chat        sessions of several turns; each turn sends all that was said before, after a time of thinking
agents      a long prompt that all share, then many short calls in a context that grows by what tools answer
documents   long prompts of their own, short answers; some ask about a document that was asked about before
bursts      a steady stream, and crowds that come all at once
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quire.core.errors import InputError
from quire.simulate import sharing
from quire.simulate.tokens import Recipe, seed_of
from quire.simulate.traces import Asked, Trace

DEFAULT_REQUESTS = 200
Random = np.random.Generator


def _about(random: Random, median: float, spread: float, least: int, most: int) -> int:
    """Log-normal around a median, clipped."""
    return int(np.clip(random.lognormal(np.log(median), spread), least, most))


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that follow one another: sizes in tokens, times in seconds."""

    opening: tuple[tuple[int, int, int], ...]
    turns: int
    words: tuple[float, float]
    """Median and spread of what each turn adds."""
    answer: tuple[float, float]
    thinking: float
    tenant: str


def spoken(session: Session, number: int, first: int, begin: float, random: Random) -> list[Asked]:
    """A session's requests, each with the whole conversation before it; `first` is the place of the first."""
    pieces, asked = list(session.opening), []
    for turn in range(session.turns):
        name = f"s{number}t{turn}"
        pieces.append((seed_of(f"words {name}"), 0, _about(random, *session.words, 1, 8192)))
        answer = _about(random, *session.answer, 1, 2048)
        recipe = Recipe.of(pieces)
        after = first + turn - 1 if turn else None
        seconds = float(random.exponential(session.thinking)) if turn else begin
        asked.append(Asked(name, recipe, answer, seconds, after, session.tenant))
        pieces.append((seed_of(name), recipe.tokens, answer))
    return asked


def _sessions(count: int, per_second: float, random: Random, session: Callable[[Random], Session]) -> list[Asked]:
    requests: list[Asked] = []
    begin, number = 0.0, 0
    while len(requests) < count:
        requests += spoken(session(random), number, len(requests), begin, random)
        begin += float(random.exponential(1 / per_second))
        number += 1
    return requests[:count]


def chat(count: int, random: Random) -> list[Asked]:
    """Four assistants with a system prompt each; every second a session of about five turns begins."""
    systems = [(seed_of(f"system {one}"), 0, tokens) for one, tokens in enumerate((400, 700, 1000, 1500))]

    def session(random: Random) -> Session:
        system = int(random.integers(len(systems)))
        turns = 1 + int(random.geometric(0.25))
        return Session((systems[system],), turns, (60, 1.0), (180, 0.8), 8.0, f"assistant-{system}")

    return _sessions(count, 1.0, random, session)


def agents(count: int, random: Random) -> list[Asked]:
    """Tasks of some 16 calls after 6,000 tokens of instructions; answers have some 50 tokens, tool results 350."""
    instructions = (seed_of("instructions"), 0, 6000)

    def session(random: Random) -> Session:
        return Session((instructions,), int(random.integers(8, 25)), (350, 1.0), (50, 0.6), 1.5, "agents")

    return _sessions(count, 0.25, random, session)


def documents(count: int, random: Random) -> list[Asked]:
    """Some 12,000 tokens and a question each; one in five asks about a document that was there before. 1 a second."""
    requests: list[Asked] = []
    known: list[tuple[int, int, int]] = []
    begin = 0.0
    for number in range(count):
        if not known or random.random() >= 0.2:
            known.append((seed_of(f"document {number}"), 0, _about(random, 12_000, 0.7, 2000, 30_000)))
            document = known[-1]
        else:
            document = known[int(random.integers(len(known)))]
        question = (seed_of(f"question {number}"), 0, _about(random, 40, 0.5, 8, 200))
        recipe = Recipe.of([document, question])
        requests.append(Asked(f"d{number}", recipe, _about(random, 150, 0.6, 8, 600), begin))
        begin += float(random.exponential(1.0))
    return requests


def bursts(count: int, random: Random) -> list[Asked]:
    """Two requests a second of one tenant, with priority 1; about every 20 seconds a burst of 30 of another one."""
    found: list[tuple[float, str]] = []
    steady, crowd = 0.0, float(random.exponential(10.0))
    while len(found) < count:
        if steady < crowd:
            found.append((steady, "steady"))
            steady += float(random.exponential(0.5))
        else:
            found += [(crowd + float(random.random()), "crowd") for _ in range(30)]
            crowd += float(random.exponential(20.0))
    requests = []
    for number, (seconds, tenant) in enumerate(sorted(found[:count])):
        recipe = Recipe.of([(seed_of(f"prompt {number}"), 0, _about(random, 800, 0.9, 16, 16_000))])
        output = _about(random, 200, 0.7, 8, 1000)
        requests.append(Asked(f"b{number}", recipe, output, seconds, None, tenant, int(tenant == "steady")))
    return requests


SORTS: dict[str, Callable[[int, Random], list[Asked]]] = {
    "chat": chat, "agents": agents, "documents": documents, "bursts": bursts,
    "nested": sharing.nested, "sessions": sharing.sessions, "waves": sharing.waves, "history": sharing.history,
}  # fmt: skip


def make_trace(sort: str, count: int, seed: int) -> Trace:
    if sort not in SORTS:
        raise InputError(f"synthetic:{sort} is not known: choose synthetic:{', synthetic:'.join(SORTS)}")
    return Trace(f"synthetic:{sort}", tuple(SORTS[sort](count, np.random.default_rng(seed))))
