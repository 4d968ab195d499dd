"""Replays a real trace twice, on one core: how long that takes, and whether both runs are the same to the byte.

    python bench/trace.py TRACE [--model llama-3.3-70b] [--requests N]

TRACE is the 12,031-request conversation trace of Mooncake's FAST'25 release, or any other that `quire simulate` reads.
The memory is that of 8 × H200 under tensor parallelism. Exits with 1 if the runs differ or one takes 5 minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

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
    command += ["--tensor-parallel", "8", "--trace", str(options.trace)]
    return command + (["--requests", options.requests] if options.requests else [])


def print_figures(output: bytes) -> None:
    (found,) = json.loads(output)["runs"]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"processor seconds of both: {used.ru_utime + used.ru_stime:,.1f}; memory: {used.ru_maxrss / 1024:,.0f} MiB")
    for name in ("finished", "steps", "virtual_seconds", "hit_rate", "hit_rate_ceiling", "preemptions", "evictions"):
        print(f"  {name}: {found[name]:,}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, default=DEFAULT_TRACE)
    parser.add_argument("--model", default="llama-3.3-70b")
    parser.add_argument("--requests", default=None)
    command = command_of(parser.parse_args())
    one_core()
    outputs, times = [], []
    for number in (1, 2):
        output, seconds = replay(command)
        outputs.append(output)
        times.append(seconds)
        print(f"run {number}: {seconds:,.1f} s, sha256 {hashlib.sha256(output).hexdigest()[:16]}", flush=True)
    print_figures(outputs[0])
    is_same, is_quick = outputs[0] == outputs[1], max(times) < GOAL_SECONDS
    print(f"identical: {'yes' if is_same else 'no'}; under {GOAL_SECONDS} s: {'yes' if is_quick else 'no'}")
    return 0 if is_same and is_quick else 1


if __name__ == "__main__":
    sys.exit(main())
