"""Settings that would make a plan fit, each tried before it is offered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from quire.core.dtypes import DType
from quire.core.errors import InputError
from quire.core.units import GIB, ceil_div, format_bytes
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.ledger import table_line
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import DEFAULT_FRACTION, Budget, Settings

MOST_OFFERS = 3
MOST_RANKS = 64
LENGTH_TO_OFFER = 8192


@dataclass(frozen=True, slots=True)
class Offer:
    """A change that was tried and fits."""

    option: str
    effect: str


def ways_to_fit(model: ModelShape, settings: Settings, budget: Budget, plan: Plan) -> list[Offer]:
    offers: list[Offer] = []
    for option, changed, other_budget in _changes(model, settings, budget, plan):
        try:
            answer = make_plan(model, changed, other_budget)
        except InputError:
            continue
        if answer.fits:
            pool = format_bytes(answer.bottleneck.pool_bytes)
            offers.append(Offer(option, f"longest length {answer.max_length:,} in a pool of {pool}"))
        if len(offers) == MOST_OFFERS:
            break
    return offers


def _changes(
    model: ModelShape, settings: Settings, budget: Budget, plan: Plan
) -> Iterator[tuple[str, Settings, Budget]]:
    """From the mildest to the most expensive."""
    if settings.max_length and plan.max_length:
        yield f"--max-length {plan.max_length}", replace(settings, max_length=plan.max_length), budget
    if settings.kv_dtype.bytes > 1:
        yield "--kv-dtype fp8", replace(settings, kv_dtype=DType.FP8), budget
    if budget.pool_bytes is not None or budget.sheets is not None:
        yield _larger_pool(settings, budget, plan)
    if budget.memory_bytes is not None:
        tokens, requests = min(2048, settings.batch_tokens), min(64, settings.max_requests)
        small = replace(settings, batch_tokens=tokens, max_requests=requests)
        yield f"--batch-tokens {tokens} --max-requests {requests}", small, budget
        if budget.is_accelerator:
            yield from _more_ranks(model, settings, budget)
        yield _more_memory(settings, budget, plan)


def _more_memory(settings: Settings, budget: Budget, plan: Plan) -> tuple[str, Settings, Budget]:
    """The smallest device, in whole GiB, that takes the requested length; with `auto`, one request of 8k tokens."""
    length = settings.max_length or min(plan.model_max_length or LENGTH_TO_OFFER, LENGTH_TO_OFFER)
    needed = 0
    for stage in plan.stages:
        ledger = plan.ranks[plan.stages.index(stage) * plan.tensor_parallel].ledger
        fixed = sum(line.bytes for line in ledger if line.name not in ("pool", "tables", "margin", "missing"))
        tables = table_line(stage.kinds, length, plan.batch_tokens, plan.lookahead, plan.max_requests).bytes
        sheets = bound.minimum(stage.kinds, length, plan.lookahead, plan.reserved_pages)
        needed = max(needed, fixed + tables + sheets * stage.sheet_bytes)
    memory = ceil_div(int(needed / budget.memory_fraction) + 1, GIB) * GIB
    fraction = "" if budget.memory_fraction == DEFAULT_FRACTION else f" --memory-fraction {budget.memory_fraction}"
    where = "" if budget.is_accelerator else "--device cpu "  # a size alone means an accelerator
    return f"{where}--memory {memory // GIB}GiB{fraction}", settings, replace(budget, memory_bytes=memory)


def _larger_pool(settings: Settings, budget: Budget, plan: Plan) -> tuple[str, Settings, Budget]:
    length = settings.max_length or 1
    needed = [bound.minimum(stage.kinds, length, plan.lookahead, plan.reserved_pages) for stage in plan.stages]
    if budget.sheets is not None:
        sheets = tuple(max(need, 1) for need in needed) if len(budget.sheets) > 1 else (max(needed),)
        return f"--sheets {','.join(map(str, sheets))}", settings, replace(budget, sheets=sheets)
    pool = max(need * stage.sheet_bytes for need, stage in zip(needed, plan.stages, strict=True))
    return f"--pool {pool}", settings, replace(budget, pool_bytes=pool)


def _more_ranks(model: ModelShape, settings: Settings, budget: Budget) -> Iterator[tuple[str, Settings, Budget]]:
    """The smallest larger number of tensor-parallel ranks that fits, and nothing beyond it."""
    ranks = settings.tensor_parallel * 2
    while ranks <= MOST_RANKS:
        changed = replace(settings, tensor_parallel=ranks)
        try:
            if make_plan(model, changed, budget).fits:
                yield f"--tensor-parallel {ranks}", changed, budget
                return
        except InputError:
            return
        ranks *= 2
