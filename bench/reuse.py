"""Prefix reuse on six workloads, five models and four pools, compared with other caches on the same requests.

    python bench/reuse.py [--workload NAME ...] [--model NAME ...] [--pool 5|20|100|unlimited ...] [--seeds 5]
        [--columns NAME ...] [--trace FILE] [--jobs 2] [--json FILE [--resume] [--again COLUMN ...]]
    python bench/reuse.py --workload waves --model gemma-3-27b --pool 20 --seeds 1 --columns quire lru     one cell

Every figure is hit tokens ÷ prompt tokens, on virtual time: every machine prints the same. Pools are in percent of the
working set (bench/reuse_pools.py). All columns have the same bytes, cost model, arrivals and 4,096 tokens a step:

    quire          the real engine, as `quire simulate` runs it (bench/reuse_quire.py)
    lru            every computed page cached, one least-recently-used list over all kinds (bench/reuse_lru.py)
    vllm           vLLM 0.32.0's planner, scheduler and KV cache manager with its default settings (bench/peer_reuse.py)
    prefix-first   the LRU cache, and requests let in by the longest cached prefix, as SGLang does

The ceiling is what the model's kinds could reach without a limit (docs/simulate.md). With --resume, what FILE has is
not played again, but for the columns after --again. Exits with 1 if a goal of bench/reuse_goals.py is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from peer_environment import peer_python
from reuse_goals import print_report
from reuse_pools import MODELS
from reuse_rows import COLUMNS, POOLS, VLLM, Case, Row, play_case
from reuse_workloads import DEFAULT_TRACE, WORKLOADS

SEEDS = 5


def read_rows(path: Path) -> list[Row]:
    return [Row(**row) for row in json.loads(path.read_text())["rows"]]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """As a whole or not at all: a run may be stopped at any moment."""
    whole = path.with_name(path.name + ".new")
    whole.write_text(json.dumps({"schema": "quire.reuse/1", "rows": [asdict(row) for row in rows]}, indent=1))
    whole.replace(path)


def cases_of(options: argparse.Namespace) -> list[Case]:
    """All workloads and models with one seed before those with the next."""
    workloads = list(options.workload)
    if "conversation" in workloads and not options.trace.is_file():
        print("conversation is left out: give --trace FILE, Mooncake's conversation trace", file=sys.stderr)
        workloads.remove("conversation")
    return [
        Case(workload, model, seed)
        for seed in range(options.seeds)
        for workload in workloads
        for model in options.model
    ]


def ordered(rows: Iterable[Row]) -> list[Row]:
    places = list(WORKLOADS), list(MODELS), POOLS

    def place(row: Row) -> tuple[int, ...]:
        names = row.workload, row.model, row.pool
        return *(own.index(name) for own, name in zip(places, names, strict=True)), row.seed

    return sorted(rows, key=place)


def play_all(options: argparse.Namespace, known: dict[tuple[str, str, int, str], Row]) -> list[Row]:
    """Rows of every case, as they are done; the file has them after each."""
    cases, done = cases_of(options), 0
    rows = dict(known)
    with ProcessPoolExecutor(options.jobs) as pool:
        asked = {
            pool.submit(
                play_case, case, options.pool, options.columns, options.trace, _before(known, case), options.again
            ): case
            for case in cases
        }
        for future in as_completed(asked):
            rows |= {row.key: row for row in future.result()}
            done += 1
            tell(asked[future], future.result(), done, len(cases))
            if options.json:
                write_rows(options.json, ordered(rows.values()))
    wanted = {(case.workload, case.model, case.seed, pool) for case in cases for pool in options.pool}
    return ordered(row for row in rows.values() if row.key in wanted)


def _before(known: dict[tuple[str, str, int, str], Row], case: Case) -> dict[str, Row]:
    names = case.workload, case.model, case.seed
    return {row.pool: row for row in known.values() if (row.workload, row.model, row.seed) == names}


def tell(case: Case, rows: Sequence[Row], done: int, total: int) -> None:
    seconds = ", ".join(f"{name} {sum(row.took.get(name, 0) for row in rows):.0f} s" for name in rows[0].found)
    print(
        f"{done} of {total}: {case.workload}, {case.model}, seed {case.seed} ({seconds})", file=sys.stderr, flush=True
    )


def parser_of() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--pool", nargs="+", choices=POOLS, default=POOLS, metavar="SHARE")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds 0 … N − 1 of each workload (default 5)")
    parser.add_argument("--trace", type=Path, default=DEFAULT_TRACE, metavar="FILE", help="the conversation trace")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there, after each case")
    parser.add_argument("--resume", action="store_true", help="go on from what --json FILE has")
    parser.add_argument("--again", nargs="+", choices=COLUMNS, default=(), metavar="NAME", help="play these anew")
    return parser


def main() -> int:
    parser = parser_of()
    options = parser.parse_args()
    if options.resume and options.json is None:
        parser.error("--resume goes on from a file: give --json FILE")
    if VLLM in options.columns:
        peer_python()
    known = read_rows(options.json) if options.resume and options.json.is_file() else []
    rows = play_all(options, {row.key: row for row in known})
    return 0 if print_report(rows, options.columns) else 1


if __name__ == "__main__":
    sys.exit(main())
