"""Replays a real trace twice, on one core: how long that takes, and whether both runs are the same to the byte.

    python bench/trace.py TRACE [--model llama-3.3-70b] [--requests N]

It then prints what a plain least-recently-used cache of the same size, which knows nothing of time, would reuse.
TRACE is the 12,031-request conversation trace of Mooncake's FAST'25 release, or any other that `quire simulate` reads.
The memory is that of 8 × H200 under tensor parallelism. Exits with 1 if the runs differ or one takes 5 minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections import OrderedDict
from itertools import takewhile
from pathlib import Path

from quire.models.read import read_model
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.planner.devices import device_bytes
from quire.simulate.traces import Trace, read_trace

RANKS = 8
GOAL_SECONDS = 300
DEFAULT_TRACE = Path(__file__).parents[2] / "shared" / "traces" / "mooncake_fast25_conversation.jsonl.gz"


def replay(command: list[str]) -> tuple[bytes, float]:
    """What it prints, and the seconds it took."""
    begin = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return done.stdout, time.perf_counter() - begin


def one_core() -> None:
    """This process and those it starts stay on one core, where the system lets them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def command_of(options: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "quire.cli.main", "simulate", options.model, "--device", "h200", "--json"]
    command += ["--tensor-parallel", str(RANKS), "--trace", str(options.trace)]
    command += ["--rate", options.rate] if options.rate else []
    return command + (["--requests", str(options.requests)] if options.requests else [])


def print_figures(output: bytes) -> None:
    (found,) = json.loads(output)["runs"]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"processor seconds of both: {used.ru_utime + used.ru_stime:,.1f}; memory: {used.ru_maxrss / 1024:,.0f} MiB")
    for name in ("finished", "steps", "virtual_seconds", "hit_rate", "hit_rate_ceiling", "preemptions", "evictions"):
        print(f"  {name}: {found[name]:,}")


def pool_tokens(model: str) -> int:
    """What the pool holds of the kinds that keep every token."""
    plan = make_plan(read_model(model), Settings(tensor_parallel=RANKS), Budget(device_bytes("h200")))
    stage = plan.stages[0]
    return int(stage.pool_bytes / sum(kind.token_bytes for kind in stage.kinds if kind.kind.grows))


def plain_reuse(trace: Trace, capacity_tokens: float) -> float:
    """One request after another, blocks of prompts alone: the share of their tokens that is there already."""
    kept: OrderedDict[int, int] = OrderedDict()
    reused = held = 0
    for asked in trace.requests:
        blocks = list(zip(asked.recipe.seeds.tolist(), asked.recipe.counts.tolist(), strict=True))
        reused += sum(count for _, count in takewhile(lambda block: block[0] in kept, blocks))
        for block, count in reversed(blocks):  # the first is used last, so that no block outlives those before it
            held += count - kept.pop(block, 0)
            kept[block] = count
        while held > capacity_tokens:
            held -= kept.popitem(last=False)[1]
    return reused / sum(asked.recipe.tokens for asked in trace.requests)


def print_plain(trace: Trace, tokens: int) -> None:
    shares = [plain_reuse(trace, capacity) for capacity in (tokens, math.inf)]
    print(f"plain LRU of {tokens:,} tokens: {shares[0]:.4f}, without end: {shares[1]:.4f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, default=DEFAULT_TRACE)
    parser.add_argument("--model", default="llama-3.3-70b")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--rate")
    options = parser.parse_args()
    if not options.trace.is_file():
        parser.error("there is no such trace: give a file that quire simulate reads (docs/simulate.md)")
    command = command_of(options)
    one_core()
    outputs, times = [], []
    for number in (1, 2):
        output, seconds = replay(command)
        outputs.append(output)
        times.append(seconds)
        print(f"run {number}: {seconds:,.1f} s, sha256 {hashlib.sha256(output).hexdigest()[:16]}", flush=True)
    print_figures(outputs[0])
    print_plain(read_trace(options.trace, options.requests), pool_tokens(options.model))
    is_same, is_quick = outputs[0] == outputs[1], max(times) < GOAL_SECONDS
    print(f"identical: {'yes' if is_same else 'no'}; under {GOAL_SECONDS} s: {'yes' if is_quick else 'no'}")
    return 0 if is_same and is_quick else 1


if __name__ == "__main__":
    sys.exit(main())
