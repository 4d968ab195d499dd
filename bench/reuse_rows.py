"""The rows of bench/reuse.py: one workload with one seed on one model in one pool, played to every column."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import reuse_quire
from quire.plan.plan import Plan
from quire.simulate.ceiling import Ceiling
from quire.simulate.cost import CostModel
from reuse_drive import Server, drive
from reuse_lru import LruServer
from reuse_peer import PeerServer, Refused
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
from reuse_workloads import WORKLOADS, Work, make_work, order_of, paced

UNLIMITED = "unlimited"
POOLS = ("5", "20", "100", UNLIMITED)
QUIRE, LRU, VLLM, PREFIX_FIRST = "quire", "lru", "vllm", "prefix-first"
COLUMNS = (QUIRE, LRU, VLLM, PREFIX_FIRST)


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
    """The share of the working set could not run the longest request: this is the smallest pool that can."""
    working_set_bytes: int
    prompt_tokens: int
    ceiling: float
    found: dict[str, float | None] = field(default_factory=dict)
    """By column: hit tokens ÷ prompt tokens. None: it does not start in this pool."""
    prefill_seconds: float = 0.0
    unsplit_seconds: float = 0.0
    preemptions: int = 0
    """These three of Quire, as in bench/reuse_quire.py."""
    missed: dict[str, int] = field(default_factory=dict)
    """Of Quire: tokens that had been computed before and were not found, by cause, where events say so."""
    took: dict[str, float] = field(default_factory=dict)
    """By column: processor seconds here."""

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.workload, self.model, self.seed, self.pool


@lru_cache(maxsize=2)
def _work(name: str, seed: int, path: Path) -> Work:
    return make_work(name, seed, path)


def ceiling_of(plan: Plan, work: Work) -> float:
    ceiling = Ceiling.of_plan(plan)
    for place in order_of(work.trace.requests):
        ceiling.of(work.known[place][: work.prompts[place]], work.known[place][work.prompts[place] :])
    return ceiling.reusable_tokens / work.prompt_tokens


def rows_of(case: Case, pools: Sequence[str], path: Path) -> Iterator[Row]:
    """One for each pool, nothing played yet."""
    work = _work(case.workload, case.seed, path)
    least = least_pool_bytes(case.model, work.longest)
    plan = plan_of(case.model, work.longest, least).require_fit()
    working_set, ceiling = working_set_bytes(plan, work), ceiling_of(plan, work)
    for pool in pools:
        asked = pool_bytes_of(pool, plan, work, working_set)
        size, is_least = max(asked, least), asked < least
        names = (case.workload, case.model, case.seed, pool)
        yield Row(*names, size, is_least, working_set, work.prompt_tokens, ceiling)


def played(row: Row, columns: Sequence[str], path: Path) -> Row:
    """With these columns, whether they were there before or not."""
    work = _work(row.workload, row.seed, path)
    plan = plan_of(row.model, work.longest, row.pool_bytes).require_fit()
    cost = cost_of(row.model, plan)
    work = paced(work, WORKLOADS[row.workload].load, seconds_per_token(cost))
    for column in columns:
        begin = time.perf_counter()
        row = _with_quire(row, plan, cost, work) if column == QUIRE else _with_baseline(row, column, plan, cost, work)
        row = replace(row, took={**row.took, column: round(time.perf_counter() - begin, 2)})
    return row


def _with_quire(row: Row, plan: Plan, cost: CostModel, work: Work) -> Row:
    result = reuse_quire.play(plan, cost, work)
    return replace(
        row,
        found={**row.found, QUIRE: result.hit_tokens / work.prompt_tokens},
        prefill_seconds=result.prefill_seconds,
        unsplit_seconds=result.unsplit_seconds,
        preemptions=result.preemptions,
        missed=result.missed,
    )


def _with_baseline(row: Row, column: str, plan: Plan, cost: CostModel, work: Work) -> Row:
    try:
        server = _baseline(row, column, plan, work)
    except Refused:
        return replace(row, found={**row.found, column: None})
    return replace(row, found={**row.found, column: drive(server, cost, work).hit_tokens / work.prompt_tokens})


def _baseline(row: Row, column: str, plan: Plan, work: Work) -> Server:
    model, pool_bytes = MODELS[row.model], plan.stages[0].pool_bytes
    if column == VLLM:
        return PeerServer(kinds_of(plan), pool_bytes, work.longest, model.exports_states)
    capacity = math.inf if row.pool == UNLIMITED else pool_bytes
    return LruServer(kinds_of(plan), capacity, model.state_block, by_prefix=column == PREFIX_FIRST)


def play_case(
    case: Case, pools: Sequence[str], columns: Sequence[str], path: Path, before: dict[str, Row], again: Sequence[str]
) -> list[Row]:
    """`before`: rows that are known, by pool; of these only what is missing is played, and what is asked for again."""
    rows = {pool: before[pool] for pool in pools if pool in before}
    missing = [pool for pool in pools if pool not in before]
    rows |= {row.pool: row for row in rows_of(case, missing, path)} if missing else {}
    return [
        played(row, [one for one in columns if one in again or one not in row.found], path)
        for row in (rows[pool] for pool in pools)
    ]
