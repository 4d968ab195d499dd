"""What each knob would change, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from quire.core.dtypes import DType
from quire.core.errors import QuireError
from quire.kinds import Keeps
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.planner.waste import waste

REFERENCE_LENGTHS = (8192, 32768)


@dataclass(frozen=True, slots=True)
class Outcome:
    option: str
    fits: bool
    max_length: int
    concurrency: tuple[int, ...]
    """At REFERENCE_LENGTHS."""
    waste: float
    """At the first of them."""
    problem: str = ""


def what_if(model: ModelShape, settings: Settings, budget: Budget) -> list[Outcome]:
    """The plan as asked first, then each change on its own."""
    base = make_plan(model, settings, budget)
    outcomes = [_outcome("as asked", base)]
    for option, change in _knobs(settings, base):
        try:
            outcomes.append(_outcome(option, make_plan(model, replace(settings, **change), budget)))
        except QuireError as error:
            outcomes.append(Outcome(option, False, 0, (0,) * len(REFERENCE_LENGTHS), 0.0, str(error)))
    return outcomes


def _outcome(option: str, plan: Plan) -> Outcome:
    held = tuple(bound.concurrency(plan, length) for length in REFERENCE_LENGTHS)
    return Outcome(option, plan.fits, plan.max_length, held, waste(plan, REFERENCE_LENGTHS[0]), plan.problem)


def _knobs(settings: Settings, plan: Plan) -> Iterator[tuple[str, dict[str, Any]]]:
    """How each is written, and the fields that it changes; some may be out of range."""
    kept = {kind.kind.keeps for stage in plan.stages for kind in stage.kinds}
    other = DType.BF16 if settings.kv_dtype is DType.FP8 else DType.FP8
    yield f"--kv-dtype {other.value}", {"kv_dtype": other}
    if Keeps.STATE in kept and settings.state_dtype is not DType.BF16:
        yield "--state-dtype bf16", {"state_dtype": DType.BF16}
    if kept - {Keeps.STATE}:
        for tokens in (16, 64):
            yield f"--page-tokens {tokens}", {"page_tokens": MappingProxyType({"": tokens})}
    for factor in (2, 4):
        ranks = settings.tensor_parallel * factor
        yield f"--tensor-parallel {ranks}", {"tensor_parallel": ranks}
    if settings.pipeline_parallel == 1:
        yield "--pipeline-parallel 2", {"pipeline_parallel": 2}
    tokens = settings.batch_tokens * 2
    yield f"--batch-tokens {tokens}", {"batch_tokens": tokens}
    requests = settings.max_requests * 2
    yield f"--max-requests {requests}", {"max_requests": requests}
    ahead = settings.speculative_tokens + 3
    yield f"--speculative-tokens {ahead}", {"speculative_tokens": ahead}
