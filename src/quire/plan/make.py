"""Makes a plan: divides the model, chooses pages and sheets, sizes the pool, finds the longest length. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from quire.core.errors import PlanError
from quire.kinds import Keeps, Kind, kind_of
from quire.models.shape import ModelShape, Rope
from quire.plan.geometry import choose_geometry, match_unit
from quire.plan.ledger import usable_bytes
from quire.plan.plan import Plan, StagePlan
from quire.plan.ranks import find_bottleneck, plan_ranks
from quire.plan.records import check_host_block, host_plan
from quire.plan.settings import Budget, Settings
from quire.plan.shares import KindShare, StageShare, divide, uneven_heads
from quire.plan.stages import CutStage, cut_stage, longest_length, seal_stage, shortfall

LENGTH_WITHOUT_LIMIT = 1 << 20
"""The length that is planned for a model without a limit of its own."""


def make_plan(model: ModelShape, settings: Settings, budget: Budget) -> Plan:
    """Returns a plan for all valid settings; its `fits` says whether the requested length fits."""
    _check_length(settings.max_length, model)
    shares = _divide(model, settings, settings.pipeline_parallel, settings.stage_layers)
    whole = _divide(model, settings, 1, None)[0].kinds
    if not whole:
        raise PlanError(f"no layer of {model.name} remembers anything: there is no memory to plan")
    page_tokens = _page_tokens(whole, model.max_length, settings)
    unit = match_unit([share.kind for share in whole], list(page_tokens.values()), settings.match_unit_tokens)
    cuts = [cut_stage(model, settings, budget, shares, index, page_tokens) for index in range(len(shares))]
    limit = settings.max_length or model.max_length or LENGTH_WITHOUT_LIMIT
    longest = [longest_length(cut, settings, limit) for cut in cuts]
    length = min(longest)
    fits = length >= (settings.max_length or 1)
    stages = tuple(seal_stage(cut, settings, length, one) for cut, one in zip(cuts, longest, strict=True))
    bottleneck = find_bottleneck(stages, settings.speculative_tokens, settings.reserved_pages, length)
    plan = Plan(
        model=model.name,
        family=model.family,
        model_max_length=model.max_length,
        requested_max_length=settings.max_length,
        max_length=length,
        fits=fits,
        problem="" if fits else _problem(cuts, stages, settings, longest),
        kv_dtype=settings.kv_dtype.value,
        state_dtype=settings.state_dtype.value if settings.state_dtype else None,
        tensor_parallel=settings.tensor_parallel,
        pipeline_parallel=settings.pipeline_parallel,
        max_requests=settings.max_requests,
        batch_tokens=settings.batch_tokens,
        lookahead=settings.speculative_tokens,
        reserved_pages=settings.reserved_pages,
        match_unit_tokens=unit,
        host_block_tokens=settings.host_block_tokens,
        stages=stages,
        ranks=plan_ranks(cuts, stages, settings, budget, length),
        bottleneck_stage=bottleneck,
        host=None,
        notes=_notes(model, settings, budget, unit, length),
        limit_bytes=None if budget.is_whole_device else usable_bytes(budget),
        rope=", ".join(rope.chosen(length) for rope in model.ropes),
    )
    check_host_block(plan)
    return plan if settings.host_bytes is None else replace(plan, host=host_plan(plan, settings.host_bytes))


def _divide(
    model: ModelShape, settings: Settings, stages: int, stage_layers: tuple[int, ...] | None
) -> tuple[StageShare, ...]:
    return divide(
        model,
        stages=stages,
        stage_layers=stage_layers,
        ranks=settings.tensor_parallel,
        kv_dtype=settings.kv_dtype,
        state_dtype=settings.state_dtype,
        with_drafts=settings.speculative_tokens > 0,
    )


def _page_tokens(kinds: Sequence[KindShare], model_length: int | None, settings: Settings) -> dict[str, int]:
    """Tokens per page of each kind, decided on the whole model so that every stage agrees."""
    forced = _forced_pages([share.kind for share in kinds], settings.page_tokens)
    geometry = choose_geometry(kinds, model_length, forced, settings.match_unit_tokens)
    return {share.kind.name: page.page_tokens for share, page in zip(kinds, geometry.pages, strict=True)}


def _forced_pages(kinds: Sequence[Kind], asked: Mapping[str, int]) -> dict[str, int]:
    """By kind name. A word that is not a kind's name means all kinds of that sort, "" all kinds that hold tokens."""
    names = [kind.name for kind in kinds]
    forced = {kind.name: asked[""] for kind in kinds if "" in asked and kind.keeps is not Keeps.STATE}
    for word, tokens in asked.items():
        meant = [word] if word in names else [kind.name for kind in kinds if kind.kind == word]
        if word and not meant:
            raise PlanError(f"--page-tokens names {word!r}, but the model's kinds are {', '.join(names)}")
        forced.update(dict.fromkeys(meant, tokens))
    return forced


def _check_length(asked: int | None, model: ModelShape) -> None:
    longest = model.stretched_length or model.max_length
    if asked is not None and longest is not None and asked > longest:
        raise PlanError(
            f"--max-length {asked:,} is beyond what {model.name} itself supports: choose at most {longest:,}"
        )


def _problem(cuts: Sequence[CutStage], stages: Sequence[StagePlan], settings: Settings, longest: Sequence[int]) -> str:
    index = min(range(len(longest)), key=lambda i: longest[i])
    where = f"stage {index}: " if len(stages) > 1 else ""
    return where + shortfall(cuts[index], stages[index], settings, longest[index])


def _rope_note(rope: Rope, length: int) -> str:
    return (
        f"rotary frequencies are {rope.chosen(length)} for every request, because lengths may exceed "
        f"{rope.original_tokens:,}: --max-length {rope.original_tokens} keeps the original ones"
    )


def _notes(model: ModelShape, settings: Settings, budget: Budget, unit: int, length: int) -> tuple[str, ...]:
    """Notes on everything that was assumed, left out or shortened."""
    notes = list(model.notes)
    if settings.max_length is None:
        limit = model.max_length or LENGTH_WITHOUT_LIMIT
        if model.max_length is None:
            notes.append(f"the model has no length limit of its own: planned for up to {limit:,} tokens")
        if 0 < length < limit:
            beside = " next to --lease-memory" if settings.lease_bytes else ""
            notes.append(f"the longest length is {length:,}, not {limit:,}: the memory holds no more{beside}")
    states = any(kind_of(memory).keeps is Keeps.STATE for layer in model.layers for memory in layer.memories)
    if settings.state_dtype and not states:
        notes.append(f"state dtype {settings.state_dtype.value} changes nothing: no layer keeps a recurrent state")
    if not model.weights_known and budget.memory_bytes is not None:
        notes.append("the shape says nothing of weights: the ledger counts none")
    if unit != settings.match_unit_tokens:
        notes.append(f"prefixes match in units of {unit} tokens, not {settings.match_unit_tokens}: pages must divide")
    notes += (_rope_note(rope, length) for rope in model.ropes if length > rope.original_tokens)
    uneven = uneven_heads(model, settings.tensor_parallel)
    if uneven:
        notes.append(f"{uneven} KV heads over {settings.tensor_parallel} ranks: each keeps a copy or an unfilled row")
    if settings.speculative_tokens and not model.draft_layers:
        notes.append("speculation without draft layers: lookahead tokens are planned, no draft memory is")
    if settings.speculative_tokens and model.draft_layers:
        notes.append(f"draft layers planned, because speculation asks for them: {len(model.draft_layers)}")
    return tuple(notes)
