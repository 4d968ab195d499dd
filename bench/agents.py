"""Agents that pause between their turns, as they outgrow the pool: what leases keep, and what others notice of them.

    python bench/agents.py [--model NAME ...] [--share PERCENT ...] [--lease-share 25] [--pool-gib 32] [--turns 8]
                           [--seeds N] [--release]

Sessions of the simulator's generator: a prompt of about 8,000 tokens, then turns that each add a tool's result after a
pause of a minute on average. Every turn asks for a lease of its end (`retain`). Between them come requests with
prompts of their own, which share nothing with leases. The real engine runs on virtual time; every machine prints the
same.

share      leases of all sessions at their longest ÷ pool
leased     turns that come while their session's lease is held
kept       tokens of these leases that they find. The promise: all of them
found      tokens of earlier turns that all later turns find ÷ tokens of earlier turns; next to it the engine with
           --lease-memory 0, and a per-page LRU (bench/reuse_lru.py)
TTFT       p99 of the requests that share nothing, with leases ÷ with --lease-memory 0. The goal: at most 1.05. The runs
           of a row differ by more than that; 90 % of all draws of as many runs from these have a ratio in the interval

--release: a session releases its lease when its last turn has ended, as a client does that knows it will not return.

Exits with 1 if a leased token is not found or the goal is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from quire.core.events import Event, RequestAdmitted, RequestEnded
from quire.core.request import Retain
from quire.core.rules import Rules
from quire.core.step import Step
from quire.core.units import GIB
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget
from quire.prefix.lease_sizes import lease_pages
from quire.prefix.leases import LeaseEnded, LeaseEnding, LeaseHeld
from quire.scheduler.scheduler import Scheduler
from quire.simulate.replay import Replay
from quire.simulate.synthetic import Session, spoken
from quire.simulate.tokens import Recipe, seed_of
from quire.simulate.traces import Asked, Trace
from reuse_drive import drive
from reuse_lru import LruServer
from reuse_pools import DEVICE_BYTES, MODELS, cost_of, kinds_of, settings_of, shape_of
from reuse_workloads import work_of

SHARES = (60, 100, 150, 200)
MOST_TTFT_RATIO = 1.05
LEASE_SECONDS, PAUSE_SECONDS, OPENING_SECONDS = 300.0, 60.0, 120.0
OPENING, TOOL_RESULT, ANSWER = 8000, (350.0, 0.6), (60.0, 0.4)
"""Tokens: of the first prompt, and median and spread of what each turn adds and is answered."""
OTHERS_PER_SECOND, OTHERS_PROMPT, OTHERS_ANSWER = 2.0, 1500, 60
LONGEST = 16_384
SESSION = "agent"
DRAWS, INTERVAL = 1000, (5, 95)
"""Draws of runs, and the percentiles of their ratios that are reported."""
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Agents:
    """A trace, and which of its requests is which."""

    trace: Trace
    earlier: dict[int, int]
    """By place, of turns but the first: tokens of the turn before, prompt and answer."""
    others: list[int]
    last: frozenset[str]
    """Names of the last turns."""

    def found(self, hits: Sequence[int]) -> int:
        """Tokens of earlier turns, by what each request found."""
        return sum(min(hits[place], tokens) for place, tokens in self.earlier.items())


def make_agents(sessions: int, turns: int, seed: int) -> Agents:
    random = np.random.default_rng(seed)
    requests: list[Asked] = []
    for number in range(sessions):
        opening = (seed_of(f"opening {number}"), 0, OPENING)
        talk = Session((opening,), turns, TOOL_RESULT, ANSWER, PAUSE_SECONDS, SESSION)
        begin = float(random.uniform(0, OPENING_SECONDS))
        retain = Retain(LEASE_SECONDS, session=f"{SESSION} {number}")
        requests += [replace(one, retain=retain) for one in spoken(talk, number, len(requests), begin, random)]
    earlier = {
        place: requests[asked.after].recipe.tokens + requests[asked.after].output_tokens
        for place, asked in enumerate(requests)
        if asked.after is not None
    }
    first = len(requests)
    seconds = np.cumsum(random.exponential(1 / OTHERS_PER_SECOND, int(turns * PAUSE_SECONDS * OTHERS_PER_SECOND)))
    for number, moment in enumerate(seconds.tolist()):
        recipe = Recipe.of([(seed_of(f"other {number}"), 0, OTHERS_PROMPT)])
        requests.append(Asked(f"other {number}", recipe, OTHERS_ANSWER, moment, tenant="others"))
    continued = {one.after for one in requests}
    last = frozenset(one.name for place, one in enumerate(requests[:first]) if place not in continued)
    return Agents(Trace("agents", tuple(requests)), earlier, list(range(first, len(requests))), last)


class Promised:
    """Which tokens were leased when a turn came, and which of them it found."""

    def __init__(self, agents: Agents) -> None:
        self._session = {
            asked.name: asked.retain.session for asked in agents.trace.requests if asked.retain is not None
        }
        self._held: dict[str, int] = {}
        self.leased = self.kept = self.turns = self.broken = 0

    def on_event(self, event: Event) -> None:
        if isinstance(event, LeaseHeld):
            self._held[event.lease] = event.tokens
        elif isinstance(event, LeaseEnded) and event.ending is not LeaseEnding.REPLACED:
            self._held.pop(event.lease, None)
            self.broken += event.ending not in (LeaseEnding.EXPIRED, LeaseEnding.RELEASED)
        elif isinstance(event, RequestAdmitted) and not event.preemptions:
            tokens = self._held.get(self._session.get(event.request, ""), 0)
            self.turns += tokens > 0
            self.leased += tokens
            self.kept += min(tokens, event.hit_tokens)


@dataclass(frozen=True, slots=True)
class Run:
    """What one run, or several, show."""

    turns: int
    leased_tokens: int
    kept_tokens: int
    broken: int
    found_tokens: int
    waited: Seconds
    """Of the requests that share nothing."""

    @property
    def ttft_p99(self) -> float:
        return float(np.percentile(self.waited, 99))


class Releases:
    """Releases the lease of a session before the first step after its last turn."""

    def __init__(self, scheduler: Scheduler, agents: Agents) -> None:
        self._session = {one.name: one.retain.session for one in agents.trace.requests if one.retain is not None}
        self._last, self._release, self._schedule = agents.last, scheduler.leasing.release, scheduler.schedule
        self._over: list[str] = []
        scheduler.events.subscribe(self._on_event)
        vars(scheduler)["schedule"] = self._next_step

    def _on_event(self, event: Event) -> None:
        if isinstance(event, RequestEnded) and event.request in self._last:
            self._over.append(self._session[event.request])

    def _next_step(self, now: float = 0.0) -> Step | None:
        while self._over:
            self._release(self._over.pop())
        return self._schedule(now)


def play(plan: Plan, name: str, agents: Agents, is_released: bool = False) -> Run:
    replay, promised = Replay(plan, cost_of(name, plan), agents.trace, Rules()), Promised(agents)
    replay.engine.scheduler.events.subscribe(promised.on_event)
    if is_released:
        Releases(replay.engine.scheduler, agents)
    recorder = replay.play().recorder
    waited = (recorder.first - recorder.arrived)[agents.others]
    found = agents.found(recorder.hit_tokens.tolist())
    return Run(promised.turns, promised.leased, promised.kept, promised.broken, found, waited)


def together(runs: Sequence[Run]) -> Run:
    counted = (
        sum(own)
        for own in zip(
            *((r.turns, r.leased_tokens, r.kept_tokens, r.broken, r.found_tokens) for r in runs), strict=True
        )
    )
    return Run(*counted, np.concatenate([run.waited for run in runs]))


def interval(leases: Sequence[Run], none: Sequence[Run]) -> tuple[float, float]:
    """Between which ratios of TTFT p99 most draws of as many runs lie."""
    random, ratios = np.random.default_rng(0), []
    for _ in range(DRAWS):
        drawn = random.integers(0, len(leases), len(leases)).tolist()
        own, others = (together([runs[place] for place in drawn]) for runs in (leases, none))
        ratios.append(own.ttft_p99 / others.ttft_p99)
    low, high = np.percentile(ratios, INTERVAL).tolist()
    return low, high


def play_lru(plan: Plan, name: str, agents: Agents) -> int:
    """Tokens of earlier turns that it finds."""
    block, pool = MODELS[name].state_block, plan.stages[0].pool_bytes
    server = LruServer(kinds_of(plan), pool, block, budget=plan.batch_tokens)
    drive(server, cost_of(name, plan), work_of(agents.trace))
    return agents.found([server.hits()[place] for place in range(len(agents.trace.requests))])


def plan_with(name: str, pool_bytes: int, lease_share: int) -> Plan:
    settings = replace(settings_of(name, LONGEST), lease_bytes=pool_bytes * lease_share // 100)
    return make_plan(shape_of(name), settings, Budget(DEVICE_BYTES, pool_bytes=pool_bytes)).require_fit()


def session_bytes(plan: Plan, agents: Agents) -> float:
    """Of a lease at the end of a session, on average."""
    last = {asked.after for asked in agents.trace.requests if asked.after is not None}
    ends = [
        asked.recipe.tokens + asked.output_tokens
        for place, asked in enumerate(agents.trace.requests)
        if asked.retain is not None and place not in last
    ]
    (stage,) = plan.stages
    sizes = [
        sum(count * kind.page_bytes for kind, count in zip(stage.kinds, lease_pages(plan, tokens)[0], strict=True))
        for tokens in ends
    ]
    return sum(sizes) / len(sizes)


def runs_of(share: int) -> int:
    """Where sessions have twice the pool, runs differ by a factor of three."""
    return 12 if share >= 200 else 3


def row(name: str, share: int, options: argparse.Namespace) -> tuple[str, bool]:
    pool = options.pool_gib * GIB
    plan, without = (plan_with(name, pool, leases) for leases in (options.lease_share, 0))
    one = session_bytes(plan, make_agents(8, options.turns, 0))
    sessions = math.ceil(share / 100 * plan.stages[0].pool_bytes / one)
    seeds = [make_agents(sessions, options.turns, seed) for seed in range(options.seeds or runs_of(share))]
    runs = [play(plan, name, agents, options.release) for agents in seeds]
    runs_without = [play(without, name, agents) for agents in seeds]
    leases, none = together(runs), together(runs_without)
    found = [leases.found_tokens, none.found_tokens, sum(play_lru(without, name, agents) for agents in seeds)]
    earlier = sum(sum(agents.earlier.values()) for agents in seeds)
    kept, ratio = leases.kept_tokens / max(1, leases.leased_tokens), leases.ttft_p99 / none.ttft_p99
    turns = leases.turns / sum(len(agents.earlier) for agents in seeds)
    waited = [f"{1e3 * run.ttft_p99:.0f} ms" for run in (leases, none)]
    cells = [f"{share} %", str(sessions), f"{turns:.0%}", f"{kept:.1%}", *(f"{own / earlier:.1%}" for own in found)]
    low, high = interval(runs, runs_without)
    cells += [*waited, f"{ratio:.2f}", f"{low:.2f}–{high:.2f}"]
    is_reached = leases.turns > 0 and kept == 1 and not leases.broken and ratio <= MOST_TTFT_RATIO
    return "| " + " | ".join(cells) + " |", is_reached


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("llama-3.1-8b", "gemma-3-27b", "qwen3-next-80b-a3b")
    parser.add_argument("--model", nargs="+", default=names, choices=MODELS, metavar="NAME")
    parser.add_argument("--share", nargs="+", type=int, default=SHARES, metavar="PERCENT")
    parser.add_argument("--lease-share", type=int, default=25, help="lease memory in percent of the pool (default 25)")
    parser.add_argument("--pool-gib", type=int, default=32, help="pool of each rank (default 32)")
    parser.add_argument("--turns", type=int, default=8, help="of each session (default 8)")
    parser.add_argument("--seeds", type=int, help="runs of each row, counted together (default 3; 12 from 200 %% on)")
    parser.add_argument("--release", action="store_true", help="sessions release their leases at their ends")
    options = parser.parse_args()
    is_reached = True
    for name in options.model:
        print(f"\n{name}: {options.pool_gib} GiB, lease memory {options.lease_share} %\n")
        print(
            "| share | sessions | leased | kept | found | no leases | LRU | TTFT p99 | no leases | ratio | interval |"
        )
        print("| --- " * 11 + "|")
        for share in options.share:
            text, is_good = row(name, share, options)
            print(text, flush=True)
            is_reached &= is_good
    print(f"\ngoals reached: {'yes' if is_reached else 'no'}")
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
