"""Routers in front of four replicas, on virtual time: how much is reused, and how long first tokens take.

    python bench/routers.py [--seeds 5] [--requests 400] [--trace chat|agents-8|agents-4 ...] [--policy NAME ...]

Llama-3.1-8B on four H200s by the cost model of `quire simulate`; the engines are real, asking them takes no time. *Gap
closed* is (reuse − reuse of round robin) ÷ (the best of session, most-reused and least-to-do − reuse of round robin).
Exact bookkeeping, no timing: every machine prints the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from quire.core.rules import Rules
from quire.core.units import GIB
from quire.models.read import read_model
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.planner.devices import device_bytes
from quire.route.policies import POLICIES
from quire.simulate.cost import cost_model
from quire.simulate.devices import speed_of
from quire.simulate.replay import Fleet
from quire.simulate.replica import Hardware
from quire.simulate.report import report
from quire.simulate.synthetic import make_trace
from quire.simulate.traces import Trace

MODEL, DEVICE, REPLICAS = "llama-3.1-8b", "h200", 4
OTHERS = ("session", "most-reused", "least-to-do")
"""Policies that the router is compared with."""
LEAST_CLOSED, MOST_LATER = 0.85, 1.05


@dataclass(frozen=True, slots=True)
class Load:
    sort: str
    times: int
    """How many times as many sessions a second as the trace has."""
    pool_bytes: int | None


LOADS = {"chat": Load("chat", 1, None), "agents-8": Load("agents", 8, 4 * GIB), "agents-4": Load("agents", 4, 6 * GIB)}


@dataclass(frozen=True, slots=True)
class Result:
    reused: float
    median: float
    slowest: float
    """Seconds to the first token, 50th and 99th percentile."""


@cache
def hardware(pool_bytes: int | None) -> Hardware:
    model = read_model(MODEL)
    plan = make_plan(model, Settings(), Budget(device_bytes(DEVICE), pool_bytes=pool_bytes)).require_fit()
    return Hardware(plan, cost_model(plan, model, speed_of(DEVICE, None, None)), Rules())


def trace_of(load: Load, requests: int, seed: int) -> Trace:
    trace = make_trace(load.sort, requests, seed)
    sooner = [
        one if one.after is not None else replace(one, seconds=one.seconds / load.times) for one in trace.requests
    ]
    return Trace(trace.name, tuple(sooner))


def play(load: Load, requests: int, seed: int, policy: str) -> Result:
    fleet = Fleet(hardware(load.pool_bytes), trace_of(load, requests, seed), POLICIES[policy](), REPLICAS)
    found = report(fleet.play())
    seconds = found["seconds_to_first_token"]
    return Result(found["hit_rate"], seconds["p50"], seconds["p99"])


def print_load(name: str, policies: Sequence[str], results: dict[str, list[Result]]) -> None:
    print(f"\n{name}\n")
    print("| policy | reused | ms to first token, p50 / p99 | gap closed, by seed | p99 ÷ round robin's, by seed |")
    print("| --- | --- | --- | --- | --- |")
    for policy in policies:
        own = results[policy]
        reused, median, slowest = (fmean(getattr(one, field) for one in own) for field in Result.__slots__)
        closed = " ".join(f"{one:.0%}" for one in gaps_closed(results, policy))
        later = " ".join(f"{one:.2f}" for one in times_later(results, policy))
        print(
            f"| {policy} | {reused:.1%} | {1e3 * median:,.0f} / {1e3 * slowest:,.0f} | {closed} | {later} |", flush=True
        )


def gaps_closed(results: dict[str, list[Result]], policy: str) -> list[float]:
    found = []
    for seed, own in enumerate(results[policy]):
        least = results["round-robin"][seed].reused
        most = max(results[other][seed].reused for other in OTHERS if other in results)
        found.append((own.reused - least) / (most - least))
    return found


def times_later(results: dict[str, list[Result]], policy: str) -> list[float]:
    return [own.slowest / robin.slowest for own, robin in zip(results[policy], results["round-robin"], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--trace", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=[*OTHERS, "least-busy"], help="besides ask")
    options = parser.parse_args()
    missed = []
    for name in options.trace:
        results = {
            policy: [play(LOADS[name], options.requests, seed, policy) for seed in range(options.seeds)]
            for policy in POLICIES
            if policy in ("ask", "round-robin", *options.policy)
        }
        print_load(name, list(results), results)
        is_met = min(gaps_closed(results, "ask")) >= LEAST_CLOSED and max(times_later(results, "ask")) <= MOST_LATER
        missed += [] if is_met else [name]
    print(f"\ngoal of ask, each seed: ≥ {LEAST_CLOSED:.0%} of the gap, p99 ≤ {MOST_LATER} × round robin's")
    print(f"missed on {', '.join(missed)}" if missed else "met on all")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
