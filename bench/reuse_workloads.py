"""The workloads of bench/reuse.py: traces by name and seed, their tokens, and how fast their requests come.

All columns see the same `Work`: the same tokens, the same answers, the same moments of arrival.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from quire.core.request import Tokens
from quire.simulate.synthetic import make_trace
from quire.simulate.tokens import mixed_tokens, seed_of
from quire.simulate.traces import Asked, Trace, read_trace

DEFAULT_TRACE = Path(__file__).parents[2] / "shared" / "traces" / "mooncake_fast25_conversation.jsonl.gz"
LONGEST_PROMPT, LONGEST_ANSWER = 16_384, 16
"""Of the conversation trace: longer prompts are left out, and answers are cut, for the sake of the time it takes."""


@dataclass(frozen=True, slots=True)
class Workload:
    requests: int
    load: float | None
    """How fast requests come: the time in which the device could compute all prompts without reuse ÷ the time in which
    they come. None: each comes when the one before it has its answer."""


WORKLOADS = {
    "conversation": Workload(400, 1.2),
    "nested": Workload(400, 1.2),
    "agents": Workload(300, 3.0),
    "sessions": Workload(400, None),
    "waves": Workload(400, 0.02),  # nobody returns before the last answer, however slow the pool makes it
    "history": Workload(200, None),
}


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One workload with one seed."""

    trace: Trace
    known: tuple[Tokens, ...]
    """Of each request: its prompt and its answer."""
    prompts: tuple[int, ...]
    """Of each request: the tokens of its prompt."""

    @property
    def longest(self) -> int:
        return max(len(tokens) for tokens in self.known)

    @property
    def prompt_tokens(self) -> int:
        return sum(self.prompts)

    @property
    def total_tokens(self) -> int:
        return sum(len(tokens) for tokens in self.known)


def work_of(trace: Trace) -> Work:
    prompts = [asked.recipe.made() for asked in trace.requests]
    known = [np.concatenate([made, _answer(asked)]) for made, asked in zip(prompts, trace.requests, strict=True)]
    return Work(trace, tuple(known), tuple(len(made) for made in prompts))


def _answer(asked: Asked) -> Tokens:
    """As the simulator's runner yields it."""
    seeds = np.array([seed_of(asked.name)], dtype=np.uint64)
    return mixed_tokens(seeds, asked.recipe.tokens + np.arange(asked.output_tokens))


def make_work(name: str, seed: int, path: Path) -> Work:
    workload = WORKLOADS[name]
    if name == "conversation":
        return work_of(stretch(read_trace(path, None), workload.requests, seed))
    return work_of(make_trace(name, workload.requests, seed))


def stretch(trace: Trace, count: int, seed: int) -> Trace:
    """Consecutive requests of a trace, those with long prompts left out; the seed chooses where it begins."""
    short = [asked for asked in trace.requests if asked.recipe.tokens <= LONGEST_PROMPT]
    begin = int(np.random.default_rng(seed).integers(max(1, len(short) - count + 1)))
    chosen = short[begin : begin + count]
    first = chosen[0].seconds
    return Trace(
        f"{trace.name} from {begin}",
        tuple(
            replace(asked, output_tokens=min(asked.output_tokens, LONGEST_ANSWER), seconds=asked.seconds - first)
            for asked in chosen
        ),
    )


def arrivals(requests: Sequence[Asked]) -> list[float]:
    """When each request would come if every answer took no time."""
    seconds: list[float] = []
    for asked in requests:
        seconds.append(asked.seconds + (0.0 if asked.after is None else seconds[asked.after]))
    return seconds


def order_of(requests: Sequence[Asked]) -> list[int]:
    """Places in the order of these arrivals."""
    moments = arrivals(requests)
    return sorted(range(len(requests)), key=lambda place: (moments[place], place))


def paced(work: Work, load: float | None, seconds_per_token: float) -> Work:
    """The same requests at another pace: arrivals and times of thinking are scaled alike."""
    span = max(arrivals(work.trace.requests))
    if load is None or not span:
        return work
    factor = work.prompt_tokens * seconds_per_token / load / span
    scaled = tuple(replace(asked, seconds=asked.seconds * factor) for asked in work.trace.requests)
    return replace(work, trace=Trace(work.trace.name, scaled))


class Arrivals:
    """Who comes when: requests of their own, and next turns some time after the answer before them."""

    def __init__(self, requests: Sequence[Asked]) -> None:
        self._requests = requests
        self._coming = [(one.seconds, place) for place, one in enumerate(requests) if one.after is None]
        heapq.heapify(self._coming)
        self._followers: list[list[int]] = [[] for _ in requests]
        for place, asked in enumerate(requests):
            if asked.after is not None:
                self._followers[asked.after].append(place)

    def __bool__(self) -> bool:
        return bool(self._coming)

    def next_moment(self) -> float:
        return self._coming[0][0]

    def until(self, now: float) -> list[int]:
        """Takes out everyone who has come by now."""
        came = []
        while self._coming and self._coming[0][0] <= now:
            came.append(heapq.heappop(self._coming)[1])
        return came

    def ended(self, place: int, now: float) -> None:
        for follower in self._followers[place]:
            heapq.heappush(self._coming, (now + self._requests[follower].seconds, follower))
