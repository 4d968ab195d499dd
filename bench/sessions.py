"""Many sessions in turn: how much of earlier turns is found again as they outgrow the pool.

    python bench/sessions.py [--model NAME ...] [--share PERCENT ...] [--pool-gib 64] [--rounds 4] [--plot FILE]

N sessions send one turn after another, round after round; each prompt is the whole conversation so far and a short
suffix. The real engine runs on a real plan, on a runner without cost. *Working set* is what the prefix index keeps for
the next turns of all sessions in a pool without end (pages times bytes, tails and checkpoints counted), in its greatest
round.
*Found* is tokens found ÷ tokens of the earlier turns, over all rounds but the first.

Beside it, on the same requests and bytes, a per-page LRU cache: pages of 16 tokens, each with a place of its own in one
list of all kinds. Every computed page is cached, those that left a window too; a request's last pages go before its
first. A hit ends before the first missing page of kinds that grow, needs the whole tail of a window, and a state exists
only where a turn ended (rounded down to a page). Exact bookkeeping, no timing: every machine prints the same.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quire.cache.pool import Holder
from quire.core.events import Event, RequestAdmitted
from quire.core.request import Request, Tokens
from quire.core.step import Step, StepResult
from quire.core.units import GIB, ceil_div
from quire.engine.engine import Engine
from quire.kinds import counts
from quire.models.read import read_model
from quire.options.extras import naming_extras
from quire.plan.make import make_plan
from quire.plan.plan import KindPlan, Plan
from quire.plan.settings import Budget, Settings
from quire.simulate.tokens import Recipe, seed_of
from unlikely import drop_unlikely

MODELS = ("gemma-3-27b", "qwen3-next-80b-a3b")
SHARES = (10, 25, 50, 75, 85, 100, 110, 125, 150, 175)
GOALS = {10: 95, 25: 95, 50: 95, 75: 95, 85: 95, 110: 60, 150: 40}
"""Least reuse in percent, by the working set in percent of the pool."""
PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Talk:
    """What a session says. Rounds grow it by suffix and answer alone."""

    prompt: int = 6000
    suffix: int = 64
    answer: int = 32
    rounds: int = 4

    def length(self, turn: int) -> int:
        """Of the prompt of a turn, counted from 0."""
        return self.prompt + turn * (self.answer + self.suffix)

    def earlier(self, turn: int) -> int:
        """Of the prompt of a turn, what the turn before had: its prompt and its answer."""
        return self.length(turn - 1) + self.answer

    @property
    def limit(self) -> int:
        return self.length(self.rounds - 1) + self.answer


class FreeRunner:
    """Yields a token at no cost: its position."""

    def __init__(self) -> None:
        self.flying: list[StepResult] = []

    def launch(self, step: Step) -> None:
        ends = (step.starts + step.counts)[step.samples]
        self.flying.append(StepResult(step.number, ends))

    def collect(self) -> StepResult:
        return self.flying.pop(0)


@dataclass(frozen=True, slots=True)
class Played:
    found: tuple[float, ...]
    """Of the tokens of earlier turns, in each round but the first."""
    kept_bytes: int
    """By the cache, at the end of the round where it is greatest."""


def plan_for(model: str, pool_bytes: int, talk: Talk, batch_tokens: int = 8192) -> Plan:
    settings = Settings(max_length=talk.limit, max_requests=8, batch_tokens=batch_tokens)
    return make_plan(read_model(model), settings, Budget(pool_bytes=pool_bytes)).require_fit()


def play(plan: Plan, sessions: int, talk: Talk, measures: bool = False) -> Played:
    """Sessions in turn through the engine. `measures`: what the cache keeps, which drops what is not needed."""
    found: dict[str, int] = {}

    def listen(event: Event) -> None:
        if isinstance(event, RequestAdmitted):
            found[event.request] = event.hit_tokens

    engine = Engine(plan, FreeRunner(), listeners=[listen])
    said = [spoken(f"session {number}", 0, talk.prompt) for number in range(sessions)]
    kept = 0
    for turn in range(talk.rounds):
        for number in range(sessions):
            stream = engine.submit(Request(f"{number} {turn}", said[number], talk.answer))
            engine.drain()
            words = spoken(f"session {number}", talk.length(turn), talk.suffix)
            said[number] = np.concatenate([said[number], stream.tokens(), words])
        kept = max(kept, kept_bytes(engine)) if measures else 0
    shares = [
        sum(found[f"{number} {turn}"] for number in range(sessions)) / (sessions * talk.earlier(turn))
        for turn in range(1, talk.rounds)
    ]
    return Played(tuple(shares), kept)


def spoken(name: str, begin: int, tokens: int) -> Tokens:
    return Recipe.of([(seed_of(name), begin, tokens)]).made()


def kept_bytes(engine: Engine) -> int:
    """Pages that the cache holds for the next turns, in bytes of one rank: without spares and boundaries that later
    turns have passed, which go first."""
    index = engine.scheduler.reuse.index
    drop_unlikely(index)
    return sum(
        int((shelf.count(Holder.CACHE) > 0).sum()) * kind.page_bytes
        for memory in engine.scheduler.memories
        for shelf, kind in zip(memory.pool.shelves, memory.stage.kinds, strict=True)
    )


def session_bytes(model: str, talk: Talk) -> float:
    """What the index keeps of one session, measured where nothing must be forgotten."""
    few = 4
    return play(plan_for(model, few * 8 * GIB, talk), few, talk, measures=True).kept_bytes / few


Page = tuple[int, int, int]
"""kind, session, number of the page; of a state the page that it stands behind"""


class PageCache:
    """One list of pages of all kinds, the least recently used first."""

    def __init__(self, kinds: Sequence[KindPlan], capacity_bytes: int) -> None:
        self.kinds = kinds
        self.sizes = [k.fixed_bytes if k.kind.kind == "state" else int(PAGE_TOKENS * k.token_bytes) for k in kinds]
        self.capacity_bytes = capacity_bytes
        self.pages: OrderedDict[Page, None] = OrderedDict()
        self.bytes = 0

    def turn(self, session: int, prompt: int, answer: int) -> int:
        """One request, alone: tokens of its prompt that it finds; then all its pages are cached."""
        hit = self.find(session, prompt)
        for page in self.used(session, hit, prompt + answer - 1):
            if page not in self.pages:
                self.bytes += self.sizes[page[0]]
            self.pages[page] = None
            self.pages.move_to_end(page)
        while self.bytes > self.capacity_bytes:
            self.bytes -= self.sizes[self.pages.popitem(last=False)[0][0]]
        return hit

    def find(self, session: int, prompt: int) -> int:
        boundaries = range((prompt - 1) // PAGE_TOKENS * PAGE_TOKENS, 0, -PAGE_TOKENS)
        return next((end for end in boundaries if all(page in self.pages for page in self._needed(session, end))), 0)

    def _needed(self, session: int, tokens: int) -> Iterator[Page]:
        """Pages of which a request at `tokens` tokens reads or, for states, goes on: those of the fewest first."""
        for kind, plan in sorted(enumerate(self.kinds), key=lambda one: one[1].kind.grows):
            if plan.kind.kind == "state":
                yield kind, session, tokens // PAGE_TOKENS - 1
            else:
                first = int(plan.kind.first_page(counts(tokens), PAGE_TOKENS))
                yield from (
                    (kind, session, number) for number in range(ceil_div(tokens, PAGE_TOKENS) - 1, first - 1, -1)
                )

    def used(self, session: int, hit: int, tokens: int) -> Iterator[Page]:
        """In the order in which a request lets go of them: pages left by windows, then the last ones first."""
        whole = tokens // PAGE_TOKENS * PAGE_TOKENS
        for kind, plan in enumerate(self.kinds):
            if not plan.kind.grows and plan.kind.kind != "state":
                left = int(plan.kind.first_page(counts(whole), PAGE_TOKENS))
                yield from ((kind, session, n) for n in range(hit // PAGE_TOKENS, left))
        yield from self._needed(session, whole)


def play_pages(plan: Plan, sessions: int, talk: Talk) -> float:
    """The same requests through the per-page cache: the share of earlier tokens that it finds."""
    (stage,) = plan.stages
    cache = PageCache(stage.kinds, stage.pool_bytes)
    found = 0
    for turn in range(talk.rounds):
        for number in range(sessions):
            hit = cache.turn(number, talk.length(turn), talk.answer)
            found += hit if turn else 0
    return found / (sessions * sum(talk.earlier(turn) for turn in range(1, talk.rounds)))


@dataclass(frozen=True, slots=True)
class Point:
    share: float
    """Working set ÷ pool."""
    sessions: int
    rounds: tuple[float, ...]
    plain: float
    """Found by the per-page cache."""

    @property
    def found(self) -> float:
        """All rounds but the first together; they differ by a few tokens a session."""
        return sum(self.rounds) / len(self.rounds)


@dataclass(frozen=True, slots=True)
class Curve:
    model: str
    pool_bytes: int
    session_bytes: float
    points: list[Point]


def curve(model: str, pool_bytes: int, shares: Sequence[int], talk: Talk, batch_tokens: int = 8192) -> Curve:
    """As few sessions as bring the working set to each share of the pool, in percent."""
    plan = plan_for(model, pool_bytes, talk, batch_tokens)
    pool, one = plan.stages[0].pool_bytes, session_bytes(model, talk)
    points = []
    for share in shares:
        sessions = math.ceil(share / 100 * pool / one)
        rounds = play(plan, sessions, talk).found
        points.append(Point(sessions * one / pool, sessions, rounds, play_pages(plan, sessions, talk)))
    return Curve(model, pool, one, points)


def print_table(curve: Curve, asked: Sequence[int]) -> None:
    print(f"\n{curve.model}: {curve.pool_bytes / GIB:.1f} GiB, {curve.session_bytes / 1e6:,.0f} MB a session\n")
    print("| working set ÷ pool | sessions | found by Quire | its rounds | goal | found by per-page LRU |")
    print("| --- | --- | --- | --- | --- | --- |")
    for share, point in zip(asked, curve.points, strict=True):
        goal = f"≥ {GOALS[share]} %" if share in GOALS else "–"
        spread = f"{100 * min(point.rounds):.0f} to {100 * max(point.rounds):.0f} %"
        found = f"{100 * point.found:.1f} % | {spread} | {goal} | {100 * point.plain:.1f} %"
        print(f"| {100 * point.share:.0f} % | {point.sessions} | {found} |")


def draw(curves: Sequence[Curve], path: Path) -> None:
    with naming_extras("--plot"):
        import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, places = pyplot.subplots(
        1, len(curves), figsize=(5.5 * len(curves), 4), squeeze=False, layout="constrained"
    )
    for axes, curve in zip(places[0], curves, strict=True):
        shares = [100 * point.share for point in curve.points]
        axes.plot(shares, [100 * point.found for point in curve.points], "o-", label="Quire")
        axes.plot(shares, [100 * point.plain for point in curve.points], "s--", label="per-page LRU, same bytes")
        axes.plot(shares, [min(100.0, 1e4 / share) for share in shares], ":", color="grey", label="pool ÷ working set")
        axes.plot(list(GOALS), list(GOALS.values()), "_", color="black", markersize=12, label="goal")
        axes.set(
            xlabel="working set, % of the pool", ylabel="earlier tokens found, %", title=curve.model, ylim=(-3, 103)
        )
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path)
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=MODELS, metavar="NAME")
    parser.add_argument("--share", nargs="+", type=int, default=SHARES, metavar="PERCENT")
    parser.add_argument("--pool-gib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--plot", type=Path, metavar="FILE")
    options = parser.parse_args()
    curves = []
    for model in options.model:
        curves.append(curve(model, options.pool_gib * GIB, options.share, Talk(rounds=options.rounds)))
        print_table(curves[-1], options.share)
    if options.plot:
        draw(curves, options.plot)
    reached = [
        100 * p.found >= GOALS.get(s, 0) for one in curves for s, p in zip(options.share, one.points, strict=True)
    ]
    print(f"\ngoals reached: {'yes' if all(reached) else 'no'}")
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
