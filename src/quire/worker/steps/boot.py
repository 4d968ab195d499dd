"""Places a model on a GPU: the largest steps are tried out, then the pool is allocated. Recordings come last.

weights ──▶ products fused ──▶ the largest steps, on a scratch sheet ──▶ pool ──▶ runner ──▶ recordings
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
from quire.kinds import Keeps
from quire.options.run import RunOptions
from quire.plan.ledger import recorded_rows
from quire.plan.plan import Plan, StagePlan
from quire.worker.backends.choice import Backend
from quire.worker.backends.flashinfer_backend import available
from quire.worker.kernels.gated import gated, joined
from quire.worker.kernels.moves import KernelMoves
from quire.worker.model.drafting import DraftModel
from quire.worker.model.experts import use_experts
from quire.worker.model.fused import fuse, gate
from quire.worker.model.invariant import make_invariant, require_invariant
from quire.worker.model.model import TorchModel
from quire.worker.model.packed_kernels import packed_grouped, packed_product
from quire.worker.model.packed_linear import use_products
from quire.worker.model.positions import fix_positions
from quire.worker.pages.arena import Arena
from quire.worker.ranks.share import stage_of
from quire.worker.sampling.sampler import Sampler
from quire.worker.steps.device_runner import DeviceRunner
from quire.worker.steps.graphs import Tables
from quire.worker.steps.meter import Meter
from quire.worker.steps.place import PlacedModel, Weights, use_threads

SPARE_SHEETS = 1
"""For rows of padding in recorded steps."""
HARDEST = Sampling(temperature=1.0, top_k=50, top_p=0.9, repetition_penalty=1.1, seed=0)
"""The sampling that takes the most memory: probabilities of the whole vocabulary, and tables of penalties. Those are
allocated for the first request with a penalty, in memory that is reserved here."""


def place_on_gpu(plan: Plan, weights: Weights, meter: Meter, options: RunOptions) -> PlacedModel:
    """The weights lie on the meter's device already. What is measured is noted in the meter's ledger."""
    use_threads(options)
    stage, backends = stage_of(plan, weights.member.share), available(options.deterministic)
    models = weights.with_layers(stage)
    for model, part in models:
        fix_positions(model, plan.max_length)
        fuse(model)
        use_products(model, packed_product, packed_grouped)
        if options.deterministic:
            require_invariant(model, part)
            make_invariant(model)
        else:
            gate(model, gated, joined)
            use_experts(model)
    meter.note("weights", meter.allocated())
    meter.note("activations", max(step_bytes(plan, model, part, meter, backends) for model, part in models))
    meter.require_room(plan, SPARE_SHEETS)
    arena = Arena(stage, meter.device, moves=KernelMoves(), spare=SPARE_SHEETS)
    meter.note("pool", arena.bytes.numel())

    def on(model: Any, part: StagePlan) -> TorchModel:
        own = Arena(part, meter.device, arena.bytes, moves=KernelMoves())
        return TorchModel(model, own, backends, options.compile or options.deterministic, options.deterministic)

    own, *draft = (on(model, part) for model, part in models)
    return PlacedModel(own, arena, options, DraftModel(*draft) if draft else None, meter, weights.member)


def record(runner: DeviceRunner, meter: Meter, tables: Tables, counts: Sequence[int] | None = None) -> None:
    """Records decode steps of up to the plan's maximum of requests."""
    before = meter.taken()
    counts = recorded_rows(runner.plan.max_requests) if counts is None else counts
    if runner.model.is_invariant:
        counts = sorted({max(2, count) for count in counts})  # a single token is computed otherwise than several
    runner.record(counts, tables)
    runner.sampler.warm(runner.model.model.dtype)
    graphs = runner.graphs
    staged = 0 if graphs is None else graphs.fixed.size_bytes
    kept = 0 if graphs is None else graphs.fixed.table_bytes
    meter.note("tables", kept)
    meter.note("staging", staged)
    meter.note("graphs", max(0, meter.taken() - before - staged - kept))
    meter.require_step(runner.plan)


def step_bytes(plan: Plan, model: Any, part: StagePlan, meter: Meter, backends: Sequence[Backend]) -> int:
    """The peak of the largest steps that the plan allows, without what stays allocated (workspace of kernels). All
    their pages lie in one scratch sheet and overlap: the results are not used."""
    stage = replace(part, sheets=1)
    arena = Arena(stage, meter.device, moves=KernelMoves())
    arena.bytes.zero_()
    tried = TorchModel(model, arena, backends)
    meter.start_peak()
    for step in largest_steps(plan, stage):
        _try(tried, step, Sampler(plan.max_requests, tried.vocab_size, meter.device))
    return meter.peak() - meter.allocated()


def _try(tried: TorchModel, step: Step, sampler: Sampler) -> None:
    """Allocates the tables of penalties before the layers run: a request with penalties may have come before."""
    entries, places, positions = step.sample_places()
    for row in step.rows.tolist():
        sampler.enter(row, HARDEST, ())
    token_ids = torch.zeros(step.tokens, dtype=torch.int64, device=sampler.device)
    last = torch.from_numpy(places).to(sampler.device)
    logits = torch.zeros_like(tried.forward(token_ids, tried.prepare(step), last))
    sampler.sample(logits, step.rows[entries], positions)


def largest_steps(plan: Plan, stage: StagePlan) -> tuple[Step, ...]:
    """The deepest: one row with as many tokens as it may have, the last of the longest request, which attention cuts
    into the most pieces. And the widest: all rows and tokens, all rows sampling, after drafts too. It comes last, so
    rotary frequencies that depend on the greatest position return to their first values. Where layers keep recurrent
    states, the step with the most captures comes first."""
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
    if not any(one.kind.keeps is Keeps.STATE for every in plan.stages for one in every.kinds):
        return ()
    kinds = [kind for kind, one in enumerate(stage.kinds) if one.kind.keeps is Keeps.STATE]  # of this stage: none, even
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
    drafts = np.minimum(plan.lookahead, counts - 1) if plan.lookahead else None
    return Step(0, each, starts, counts, samples, 0 * each, ids, tables=(tuple(tables),), drafts=drafts)
