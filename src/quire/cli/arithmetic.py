"""`--explain`: the arithmetic of a plan, with the names that the model's own configuration uses."""

from __future__ import annotations

from collections.abc import Iterable

from quire.cli.text import bold, heading
from quire.core.dtypes import DType, parse_dtype
from quire.core.memory import Memory, Part
from quire.core.units import format_bytes, format_count
from quire.kinds import Keeps, Kind, kind_of
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.plan import KindPlan, Plan, StagePlan
from quire.plan.shares import store


def print_explanation(model: ModelShape, plan: Plan) -> None:
    heading("How the numbers come about")
    for kind, memories in _by_kind(model, plan).items():
        print(f"  {bold(kind.name)}")
        for memory, layers in memories.items():
            _memory(memory, layers, plan)
    for index, stage in enumerate(plan.stages):
        if stage.kinds:
            print(f"  {bold(f'stage {index}' if len(plan.stages) > 1 else 'pages and sheets')}")
            for kind_plan in stage.kinds:
                _pages(kind_plan, stage)
            _minimum(plan, stage)


def _by_kind(model: ModelShape, plan: Plan) -> dict[Kind, dict[Memory, list[int]]]:
    layers = model.layers + (model.draft_layers if plan.lookahead else ())
    kinds: dict[Kind, dict[Memory, list[int]]] = {}
    for index, layer in enumerate(layers):
        for memory in layer.memories:
            kinds.setdefault(kind_of(memory), {}).setdefault(memory, []).append(index)
    return kinds


def _memory(memory: Memory, layers: list[int], plan: Plan) -> None:
    per = {"state": "request", "cross": "encoder token"}.get(memory.kind, "token")
    if memory.tokens_per_state > 1:
        per = f"{memory.tokens_per_state} tokens"
    total = 0
    for part in memory.parts:
        text, size = _part(part, plan)
        total += size
        print(f"      {part.name}: {text} = {size:,} B")
    print(f"    {total:,} B per {per} and layer × {len(layers)} layers ({_runs(layers)}) = {total * len(layers):,} B")
    if plan.tensor_parallel > 1:
        kv, state = _dtypes(plan)
        own = store(memory, 0, kv, state, plan.tensor_parallel).unit_bytes
        print(f"    of which the fullest of {plan.tensor_parallel} ranks keeps {own:,} B per {per} and layer")


def _dtypes(plan: Plan) -> tuple[DType, DType | None]:
    return parse_dtype(plan.kv_dtype), parse_dtype(plan.state_dtype) if plan.state_dtype else None


def _part(part: Part, plan: Plan) -> tuple[str, int]:
    kv, state = _dtypes(plan)
    dtype = part.stored_dtype(kv, state)
    scales = f" + {part.heads * part.scale_bytes} B scales" if dtype.is_quantised and part.scale_bytes else ""
    numbers = part.origin or f"{part.heads} × {part.width}"
    return f"{numbers} × {dtype.bytes} B ({dtype.value}){scales}", part.bytes(kv, state)


def _runs(layers: Iterable[int]) -> str:
    """`0–4, 6–10, …` for at most three runs."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    shown = [f"{first}–{last}" if first != last else str(first) for first, last in runs[:3]]
    return ", ".join(shown) + (", …" if len(runs) > 3 else "")


def _pages(kind: KindPlan, stage: StagePlan) -> None:
    units = kind.kind.units_per_page(kind.page_tokens)
    what = "1 state" if kind.kind.keeps is Keeps.STATE else f"{kind.page_tokens} tokens"
    folded = f" ÷ {kind.kind.tokens_per_unit} per state" if kind.kind.tokens_per_unit > 1 else ""
    exact = kind.unit_bytes * units // kind.groups
    padding = f" + {kind.page_bytes - exact:,} B padding" if kind.page_bytes > exact else ""
    print(
        f"    {kind.name}: a page is {what}{folded} of {kind.slots // kind.groups} layers × "
        f"{kind.unit_bytes // kind.slots:,} B{padding} = {kind.page_bytes:,} B; {stage.sheet_bytes:,} B a sheet ÷ it = "
        f"{kind.pages_per_sheet:,} page(s)"
    )


def _minimum(plan: Plan, stage: StagePlan) -> None:
    if not plan.max_length:
        return
    needed = bound.minimum(stage.kinds, plan.max_length, plan.lookahead, plan.reserved_pages)
    pages = bound.resident(stage.kinds, plan.max_length, plan.lookahead)
    held = ", ".join(f"{count:,} of {kind.name}" for kind, count in zip(stage.kinds, pages, strict=True))
    print(f"    a lone request of {plan.max_length:,} tokens holds {held} pages in steady decode")
    most = f"{format_count(needed, 'sheet')} ({format_bytes(needed * stage.sheet_bytes)})"
    print(f"    and never needs more than {most} of {stage.sheets:,}, one token at a time: so it is admitted")
