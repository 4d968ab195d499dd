"""The proof of a split, before any weights are read: a small twin of the checkpoint's own configuration, with random
weights, run whole and in parts on pages of its own. Its logits must be equal.

    twin ──▶ plan for one ──▶ whole ──▶ logits ──┐
         └─▶ plan for N ──▶ N threads ──▶ logits ─┴─▶ equal, or refused by name

A split that is wrong yields wrong tokens and no error, so nothing is served without this.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from quire.core.dtypes import DType
from quire.core.errors import ModelError, PlanError, QuireError
from quire.core.step import Step
from quire.models.read import read_config
from quire.models.shape import ModelShape
from quire.models.weight_layout import WeightFormat
from quire.plan.make import make_plan
from quire.plan.plan import Plan, StagePlan
from quire.plan.settings import Budget, Settings
from quire.worker.model.model import TorchModel, build
from quire.worker.model.positions import fix_positions
from quire.worker.model.scales import probe
from quire.worker.pages.arena import Arena
from quire.worker.ranks.local import local_config
from quire.worker.ranks.member import Member
from quire.worker.ranks.share import WHOLE, Share, stage_of
from quire.worker.ranks.shared import SharedModel, share_model
from quire.worker.ranks.stages import layers_of
from quire.worker.ranks.threads import ThreadGroup
from quire.worker.ranks.twin import ranked_twin, spread_weights

TOKENS = 45
"""More than two windows of a twin; the last one is computed alone, as decode steps do it."""
TOLERANCE = 1e-3
"""Of the greatest logit: a twin computes in fp32, where sums in another order differ by about 1e-6."""
MOST_BEYOND_PLAN = 1.25
"""Times as many bytes as the plan counts for the layers of a small model."""
IN_FP32 = WeightFormat(DType.FP32, on_cpu=False)
MOST_STAGES = 2
"""Of a twin: a third stage does what the second one does."""


@dataclass(frozen=True, slots=True)
class Proof:
    ranks: int
    stages: int
    layer_outputs: int | None
    """How many results the model's layers return, as a tuple; None: the hidden states alone."""
    error: float
    """The greatest difference of the logits, relative to the greatest logit."""


def prove_split(config: Any, ranks: int, stages: int) -> Proof:
    """Raises ModelError with what computes something else in parts."""
    name = (config.architectures or [type(config).__name__])[0]
    local_config(config, ranks)  # the twin has sizes that ranks can divide
    try:
        return _prove(name, config, ranks, min(stages, MOST_STAGES))
    except PlanError as error:
        raise _refusal(name, ranks, stages, f"cannot be planned ({str(error).partition(': ')[0]})") from error
    except QuireError:
        raise
    except Exception as error:  # classes of transformers raise anything where a size is not what they expect
        reason = " ".join(str(error).split())[:160]
        raise _refusal(name, ranks, stages, f"cannot run ({type(error).__name__}: {reason})") from error


def _refusal(name: str, ranks: int, stages: int, what: str) -> ModelError:
    parts, option = (f"{ranks} ranks", "tensor") if ranks > 1 else (f"{stages} stages", "pipeline")
    return ModelError(f"{name}: a small twin of its configuration {what} on {parts}: choose --{option}-parallel 1")


def _prove(name: str, config: Any, ranks: int, stages: int) -> Proof:
    twin = ranked_twin(config, ranks)
    shape = _shape_of(twin, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole = build(twin, torch.float32).eval()
    spread_weights(whole)
    expected, outputs = _run_whole(whole, _plan(shape, 1, 1), has_stages=stages > 1)
    plan = _plan(shape, ranks, stages)
    group = ThreadGroup(ranks, stages)
    parts = [_part(whole, twin, Member(share, *group.ports(share)), plan, outputs) for share in group.shares]
    _require_divided(name, shape, parts)
    found = _run_parts(group, parts, plan)
    largest = float(expected.abs().max())
    error = float((found - expected).abs().max()) / largest
    if not error <= TOLERANCE:
        raise _refusal(name, ranks, stages, f"computes other logits (off by {error:.1g} of the greatest)")
    return Proof(ranks, stages, outputs, error)


def _shape_of(twin: Any, config: Any) -> ModelShape:
    fields = {**json.loads(twin.to_json_string()), "architectures": config.architectures}
    return replace(read_config(fields, twin.model_type, weight_format=IN_FP32), draft_layers=())


def _plan(shape: ModelShape, ranks: int, stages: int) -> Plan:
    """Layers that share a memory stay on one stage: the first division that allows it."""
    count = len(shape.layers)
    divisions = [None] if stages == 1 else [(first, count - first) for first in (count // 2, *range(1, count))]
    for division in divisions[:-1]:
        with contextlib.suppress(PlanError):
            return _divided_plan(shape, ranks, stages, division)
    return _divided_plan(shape, ranks, stages, divisions[-1])


def _divided_plan(shape: ModelShape, ranks: int, stages: int, layers: tuple[int, ...] | None) -> Plan:
    settings = Settings(
        max_length=2 * TOKENS,
        max_requests=2,
        batch_tokens=2 * TOKENS,
        kv_dtype=DType.FP32,
        match_unit_tokens=16,
        tensor_parallel=ranks,
        pipeline_parallel=stages,
        stage_layers=layers,
    )
    return make_plan(shape, settings, Budget(pool_bytes=8 << 20)).require_fit()


def _run_whole(model: Any, plan: Plan, has_stages: bool) -> tuple[torch.Tensor, int | None]:
    """Logits, and with stages how many results a layer returns, as a tuple."""
    own, found = copy.deepcopy(model), list[int | None]()

    def note(_module: Any, _given: Any, result: Any) -> None:
        found.append(len(result) if isinstance(result, tuple) else None)

    own.quire_share = WHOLE
    if has_stages:
        layers_of(own)[0].register_forward_hook(note)
    logits = _logits(own, plan, plan.stages[0])
    return logits, found[0] if found else None


def _run_parts(group: ThreadGroup, parts: Sequence[SharedModel], plan: Plan) -> torch.Tensor:
    """Of the last stage's first rank."""

    def run(share: Share) -> torch.Tensor:
        return _logits(parts[share.number].model, plan, stage_of(plan, share))

    return group.run(run)[-plan.tensor_parallel]


def _require_divided(name: str, shape: ModelShape, parts: Sequence[SharedModel]) -> None:
    """The plan counts weights of layers that ranks divide: a layer that stays whole would not fit."""
    share = parts[0].model.quire_share
    planned = sum(layer.weight_bytes / share.ranks + layer.replicated_weight_bytes for layer in shape.layers)
    held = sum(part.layer_bytes() for part in parts[:: share.ranks])
    if shape.weights_known and held > MOST_BEYOND_PLAN * planned:
        raise _refusal(
            name, share.ranks, share.stages, f"has layers of {held:,} bytes where {planned:,.0f} are planned for a rank"
        )


def _part(whole: Any, twin: Any, member: Member, plan: Plan, outputs: int | None) -> SharedModel:
    stage = stage_of(plan, member.share)
    layers = range(stage.first_layer, stage.first_layer + stage.layers)
    made = share_model(twin, member, layers, torch.float32, outputs)
    values = whole.state_dict()
    for names in made.tensors():
        made.fill(names, values[names[0]])
    return made


def _logits(model: Any, plan: Plan, stage: StagePlan) -> torch.Tensor:
    """Of all tokens: some at once, and the last alone."""
    fix_positions(model, plan.max_length)
    arena = Arena(stage, torch.device("cpu"))
    runs = TorchModel(model, arena)
    step = probe(arena, runs.vocab_size, TOKENS)
    first = replace(step, counts=step.counts - 1, token_ids=step.token_ids[:-1])
    last = replace(step, starts=step.counts - 1, counts=step.counts // step.counts, token_ids=step.token_ids[-1:])
    return torch.cat([_run(runs, one) for one in (first, last)])


def _run(model: TorchModel, step: Step) -> torch.Tensor:
    ids = torch.from_numpy(step.token_ids).long()
    return model.logits(ids, model.prepare(step), 0)
