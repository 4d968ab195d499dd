"""An hour of a real trace on virtual time, behind a host tier whose loads fail or come late, and that is lost and back.

    python bench/hour.py [TRACE] [--model gemma-3-27b] [--requests N] [--seed S]

TRACE is the 12,031-request conversation trace of Mooncake's FAST'25 release, or any other that `quire simulate` reads.
Exits with 1 if a request does not end, if nothing is computed for longer than a load may take, or if a page of the pool
or a block of the tier is held by anyone when all have ended.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from quire.check.definitions import Violation
from quire.check.promises import check_nothing_left
from quire.core.rules import Rules
from quire.core.units import GIB
from quire.models.read import read_model
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.planner.devices import device_bytes
from quire.simulate.cost import cost_model
from quire.simulate.devices import speed_of
from quire.simulate.replay import Played, Replay
from quire.simulate.replica import Stalled
from quire.simulate.report import report
from quire.simulate.tier import HostCost
from quire.simulate.traces import Trace, read_trace

RANKS, POOL_BYTES, HOST_BYTES = 8, 16 * GIB, 1024 * GIB
OVERHEAD_SECONDS, HOST_BANDWIDTH = 0.02, 50e9
"""Long steps, so that an hour has fewer of them."""
DEFAULT_TRACE = Path(__file__).parents[2] / "shared" / "traces" / "mooncake_fast25_conversation.jsonl.gz"


def replay_of(name: str, trace: Trace, seed: int) -> Replay:
    model = read_model(name)
    settings = Settings(tensor_parallel=RANKS, host_bytes=HOST_BYTES)
    plan = make_plan(model, settings, Budget(device_bytes("h200"), pool_bytes=POOL_BYTES)).require_fit()
    cost = cost_model(plan, model, speed_of("h200", None, None), OVERHEAD_SECONDS, 1.0)
    return Replay(plan, cost, trace, Rules(), HostCost(HOST_BANDWIDTH, seed))


def problem_of(replay: Replay, played: Played) -> str:
    """What is left when everything has ended, or who did not; empty: nothing and nobody."""
    found = report(played)
    if found["finished"] + found["refused"] < found["requests"]:
        return f"{found['requests'] - found['finished'] - found['refused']} requests did not end"
    assert replay.tier is not None
    replay.wait_for_transfers()
    if blocks := replay.tier.held_blocks():
        return f"{blocks} blocks of the tier are held"
    try:
        check_nothing_left(replay.engine.scheduler)
    except Violation as violation:
        return str(violation)
    return ""


def print_figures(played: Played) -> None:
    found = report(played)
    names = ("requests", "finished", "refused", "virtual_seconds", "steps", "hit_rate", "preemptions", "evicted_tokens")
    for name in names:
        print(f"  {name}: {found[name]:,}")
    for name, count in found["tier"].items():
        print(f"  {name}: {count:,}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, default=DEFAULT_TRACE)
    parser.add_argument("--model", default="gemma-3-27b")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not options.trace.is_file():
        parser.error("there is no such trace: give a file that quire simulate reads (docs/simulate.md)")
    replay = replay_of(options.model, read_trace(options.trace, options.requests), options.seed)
    begin = time.process_time()
    try:
        played = replay.play()
    except Stalled as stalled:
        print(f"stalled: {stalled}")
        return 1
    print(f"{options.model}, {options.trace.name}: {time.process_time() - begin:,.0f} s of processor time")
    print_figures(played)
    problem = problem_of(replay, played)
    print(f"no stall; {problem or 'nothing is held'}")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
