"""Starts a model on a GPU: weights are there already; steps are tried out, then come pool and recordings.

weights ──▶ products put together ──▶ the largest steps, on a scratch sheet ──▶ pool ──▶ runner ──▶ recordings
               each line of the ledger is measured as it is taken ──▶ Meter
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from quire.core.sampling import Sampling
from quire.core.step import Capture, Ints, Step, TableView
from quire.plan.plan import Plan, StagePlan
from quire.worker.arena import Arena
from quire.worker.backends import Backend
from quire.worker.device_runner import DeviceRunner
from quire.worker.drafting import DraftModel, part_of
from quire.worker.fused import fuse, gate
from quire.worker.graphs import Tables, row_counts
from quire.worker.invariant import make_invariant, require_invariant
from quire.worker.kernels.flash import available
from quire.worker.kernels.gated import gated
from quire.worker.kernels.moves import KernelMoves
from quire.worker.meter import Meter
from quire.worker.model import TorchModel
from quire.worker.positions import fix_positions
from quire.worker.runner import Grammars
from quire.worker.sampler import Sampler

SPARE_SHEETS = 1
"""For rows of padding in recorded steps."""
HARDEST = Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.1, seed=0)
"""What takes the most memory to draw: chances of the whole vocabulary, and tables of what rows have seen. Those are
made when somebody first asks for a penalty, and find the room that was kept for them here."""


def boot(
    plan: Plan,
    model: Any,
    meter: Meter,
    grammars: Grammars | None = None,
    *,
    is_compiled: bool = False,
    is_deterministic: bool = False,
    draft: Any = None,
    draft_layers: int = 0,
) -> DeviceRunner:
    """A runner without recordings: `record` makes them when the engine's tables are there. `draft`: a draft model,
    which has the last layers of the plan. `is_deterministic`: results do not depend on the batch."""
    stage, backends = plan.stages[0], available(is_deterministic)
    models = [(model, part_of(stage, 0, stage.layers - draft_layers))]
    if draft is not None:
        models.append((draft, part_of(stage, stage.layers - draft_layers, draft_layers)))
    for weights, part in models:
        fix_positions(weights, plan.max_length)
        fuse(weights)
        if is_deterministic:
            require_invariant(weights, part)
            make_invariant(weights)
        else:
            gate(weights, gated)
    meter.note("weights", meter.allocated())
    meter.note("activations", max(step_bytes(plan, weights, part, meter, backends) for weights, part in models))
    meter.require_room(plan, SPARE_SHEETS)
    arena = Arena(stage, meter.device, moves=KernelMoves(), spare=SPARE_SHEETS)
    meter.note("pool", arena.bytes.numel())

    def on(weights: Any, part: StagePlan) -> TorchModel:
        own = Arena(part, meter.device, arena.bytes, moves=KernelMoves())
        return TorchModel(weights, own, backends, is_compiled or is_deterministic, is_deterministic)

    own, *guessing = (on(weights, part) for weights, part in models)
    return DeviceRunner(plan, own, arena, grammars, *map(DraftModel, guessing))


def record(runner: DeviceRunner, meter: Meter, tables: Tables, counts: Sequence[int] | None = None) -> None:
    """Decode steps, for up to as many rows as the plan has requests."""
    before = meter.taken()
    runner.record(row_counts(runner.plan.max_requests) if counts is None else counts, tables)
    graphs = runner.graphs
    staged = 0 if graphs is None else graphs.fixed.size_bytes
    kept = 0 if graphs is None else graphs.fixed.table_bytes
    meter.note("tables", kept)
    meter.note("staging", staged)
    meter.note("graphs", max(0, meter.taken() - before - staged - kept))
    meter.require_step(runner.plan)


def step_bytes(plan: Plan, model: Any, part: StagePlan, meter: Meter, backends: Sequence[Backend]) -> int:
    """The peak of the largest steps that the plan allows, beyond what is kept behind them (workspace of kernels). Their
    pages lie on one scratch sheet, one upon the other: nobody reads what is computed."""
    stage = replace(part, sheets=1)
    arena = Arena(stage, meter.device, moves=KernelMoves())
    arena.bytes.zero_()
    tried = TorchModel(model, arena, backends)
    meter.start_peak()
    for step in largest_steps(plan, stage):
        _try(tried, step, Sampler(plan.max_requests, tried.vocab_size, meter.device))
    return meter.peak() - meter.allocated()


def _try(tried: TorchModel, step: Step, sampler: Sampler) -> None:
    """Tables of penalties are there when the layers run, as they are behind the first request that has one."""
    entries, places, positions = step.sampled()
    for row in step.rows.tolist():
        sampler.enter(row, HARDEST, ())
    token_ids = torch.zeros(step.tokens, dtype=torch.int64, device=sampler.device)
    last = torch.from_numpy(places).to(sampler.device)
    logits = torch.zeros_like(tried.forward(token_ids, tried.prepare(step), last))
    sampler.sample(logits, step.rows[entries], positions)


def largest_steps(plan: Plan, stage: StagePlan) -> tuple[Step, ...]:
    """The furthest: as many tokens as one row may have, the last of the longest request, over which attention cuts into
    most pieces. And the widest: all rows, all tokens, all of them drawing, behind guesses too. It comes last: rotary
    frequencies that grow with the positions seen go back to what they were. Where layers keep recurrent states, the one
    with the most captures comes first."""
    rows = min(plan.max_requests, plan.batch_tokens)
    most = min(plan.batch_tokens, rows * plan.max_length)
    counts = np.full(rows, most // rows, dtype=np.int64)
    counts[: most % rows] += 1
    last = np.array([min(plan.batch_tokens, plan.max_length)])
    steps = _step(plan, stage, plan.max_length - last, last), _step(plan, stage, 0 * counts, counts)
    return (*_capturing_steps(plan, stage), *steps)


def _capturing_steps(plan: Plan, stage: StagePlan) -> tuple[Step, ...]:
    """A row with all tokens but one, captured after every unit of reuse, and a row with one token, captured too: the
    kernels for many and for few tokens are compiled for captures before the first request needs them."""
    kinds = [kind for kind, one in enumerate(stage.kinds) if one.kind.kind == "state"]
    if not kinds:
        return ()
    most = min(plan.batch_tokens, plan.max_length)
    counts = np.array([most - 1, 1] if min(plan.max_requests, most) > 1 else [most])
    ends = [(entry, end) for entry, count in enumerate(counts) for end in range(1, count + 1, plan.reuse_unit_tokens)]
    pages = {kind: np.zeros(stage.kinds[kind].groups, dtype=np.int64) for kind in kinds}
    captures = [Capture(entry, end, 0, kind, pages[kind]) for entry, end in ends for kind in kinds]
    return (replace(_step(plan, stage, 0 * counts, counts), drafts=None, captures=tuple(captures)),)


def _step(plan: Plan, stage: StagePlan, starts: Ints, counts: Ints) -> Step:
    each, chunk = np.arange(len(counts)), min(plan.batch_tokens, plan.max_length)
    tables = []
    for kind in stage.kinds:
        columns = max(1, kind.kind.peak(plan.max_length, chunk, plan.lookahead, kind.page_tokens))
        tables.append(TableView(np.zeros((len(each), kind.groups, columns), dtype=np.int32), 0))
    samples, ids = np.ones(len(each), dtype=np.bool_), np.zeros(int(counts.sum()), dtype=np.int32)
    guesses = np.minimum(plan.lookahead, counts - 1) if plan.lookahead else None
    return Step(0, each, starts, counts, samples, 0 * each, ids, tables=(tuple(tables),), drafts=guesses)
