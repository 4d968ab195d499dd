"""Prefix reuse on six workloads, five models and four pools, compared with other caches on the same requests.

    python bench/reuse.py [--workload NAME ...] [--model NAME ...] [--pool 5|20|100|unlimited ...] [--seeds 5]
        [--columns NAME ...] [--trace FILE] [--jobs 2] [--json FILE [--resume]]
    python bench/reuse.py --workload waves --model gemma-3-27b --pool 20 --seeds 1 --columns quire lru     one cell

Every figure is hit tokens ÷ prompt tokens, on virtual time: every machine prints the same. Pools are in percent of the
working set (bench/reuse_pools.py). The columns:

    quire   the real engine, as `quire simulate` runs it
    lru     every computed page cached, one least-recently-used list over all kinds (bench/reuse_lru.py)
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

import reuse_quire
from quire.simulate.ceiling import Ceiling
from reuse_drive import drive
from reuse_lru import LruServer
from reuse_pools import (
    MODELS,
    cost_of,
    kinds_of,
    least_pool_bytes,
    plan_of,
    pool_bytes_of,
    seconds_per_token,
    working_set_bytes,
)
from reuse_workloads import DEFAULT_TRACE, WORKLOADS, Work, make_work, order_of, paced

POOLS = ("5", "20", "100", "unlimited")
COLUMNS = ("quire", "lru")
SEEDS = 5
UNLIMITED = "unlimited"


@dataclass(frozen=True, slots=True)
class Case:
    """One workload with one seed on one model; it has a row for each pool."""

    workload: str
    model: str
    seed: int


@dataclass(frozen=True, slots=True)
class Row:
    workload: str
    model: str
    seed: int
    pool: str
    pool_bytes: int
    is_least: bool
    """The share of the working set could not run the longest request: the smallest pool that can."""
    working_set_bytes: int
    prompt_tokens: int
    ceiling: float
    found: dict[str, float] = field(default_factory=dict)
    """By column: hit tokens ÷ prompt tokens."""
    prefill_seconds: float = 0.0
    unsplit_seconds: float = 0.0
    missed: dict[str, int] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    """By column: seconds of this machine."""

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.workload, self.model, self.seed, self.pool


@cache
def _work(name: str, seed: int, path: Path) -> Work:
    return make_work(name, seed, path)


def ceiling_of(work: Work, unit: int, has_ends: bool) -> float:
    ceiling = Ceiling(unit, has_ends)
    found = 0
    for place in order_of(work.trace.requests):
        prompt, answer = work.known[place][: work.prompts[place]], work.known[place][work.prompts[place] :]
        found += ceiling.of(prompt, answer)
    return found / work.prompt_tokens


def rows_of(case: Case, pools: Sequence[str], path: Path) -> Iterator[Row]:
    """One row for each pool, nothing played yet."""
    work = _work(case.workload, case.seed, path)
    least = least_pool_bytes(case.model, work.longest)
    plan = plan_of(case.model, work.longest, least).require_fit()
    working_set = working_set_bytes(plan, work)
    ceiling = ceiling_of(work, plan.reuse_unit_tokens, any(not kind.kind.grows for kind in kinds_of(plan)))
    for pool in pools:
        asked = pool_bytes_of(pool, plan, work, working_set)
        yield Row(
            case.workload,
            case.model,
            case.seed,
            pool,
            max(asked, least),
            asked < least,
            working_set,
            work.prompt_tokens,
            ceiling,
        )


def played(row: Row, columns: Sequence[str], path: Path) -> Row:
    work = _work(row.workload, row.seed, path)
    plan = plan_of(row.model, work.longest, row.pool_bytes).require_fit()
    cost = cost_of(row.model, plan)
    work = paced(work, WORKLOADS[row.workload].load, seconds_per_token(cost))
    found, took, more = dict(row.found), dict(row.took), {}
    for column in columns:
        begin = time.process_time()
        if column == "quire":
            result = reuse_quire.play(plan, cost, work)
            hit_tokens = result.hit_tokens
            more = {name: getattr(result, name) for name in ("prefill_seconds", "unsplit_seconds", "missed")}
        else:
            server = LruServer(kinds_of(plan), plan.stages[0].pool_bytes, MODELS[row.model].state_block)
            hit_tokens = drive(server, cost, work).hit_tokens
        found[column], took[column] = hit_tokens / work.prompt_tokens, round(time.process_time() - begin, 2)
    return replace(row, found=found, took=took, **more)


def play_case(case: Case, pools: Sequence[str], columns: Sequence[str], path: Path) -> list[Row]:
    return [played(row, columns, path) for row in rows_of(case, pools, path)]


def print_row(row: Row) -> None:
    pool = f"{row.pool}{'' if row.pool == UNLIMITED else ' %'}{' (least)' if row.is_least else ''}"
    found = "  ".join(f"{name} {100 * share:5.1f} ({row.took[name]:.1f} s)" for name, share in row.found.items())
    split = row.prefill_seconds / row.unsplit_seconds - 1 if row.unsplit_seconds else 0.0
    print(
        f"{row.workload:12} {row.model:20} {row.seed} {pool:14} {row.pool_bytes / 1e9:8.2f} GB  "
        f"ceiling {100 * row.ceiling:5.1f}  {found}  prefill {100 * split:+.1f} %",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--pool", nargs="+", choices=POOLS, default=POOLS, metavar="SHARE")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--trace", type=Path, default=DEFAULT_TRACE, metavar="FILE")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    workloads = list(options.workload)
    if "conversation" in workloads and not options.trace.is_file():
        print("conversation is left out: give --trace FILE, Mooncake's conversation trace", file=sys.stderr)
        workloads.remove("conversation")
    cases = [
        Case(workload, model, seed)
        for seed in range(options.seeds)
        for workload in workloads
        for model in options.model
    ]
    rows: list[Row] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        asked = [pool.submit(play_case, case, options.pool, options.columns, options.trace) for case in cases]
        for done in as_completed(asked):
            for row in done.result():
                print_row(row)
                rows.append(row)
            if options.json:
                options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
