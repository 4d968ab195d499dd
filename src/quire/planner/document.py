"""The documented JSON of a plan, as `quire plan --json` prints it: tables for readers, the plan itself for loaders."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from quire.core.errors import PlanFileError, QuireError
from quire.plan import bound
from quire.plan.file import SCHEMA, Json, decode, encode, fingerprint, layout_fingerprint
from quire.plan.plan import HostPlan, KindPlan, LedgerLine, Plan, RankPlan, StagePlan
from quire.planner.leases import lease_memory
from quire.planner.waste import tail_ratio, waste

DEFAULT_LENGTHS = (1024, 8192, 32768, 131072)


def table_lengths(plan: Plan, asked: Sequence[int] | None) -> tuple[int, ...]:
    """1k, 8k, 32k, 128k and the longest, as far as they are admitted; or only the requested lengths."""
    if asked:
        return tuple(dict.fromkeys(asked))
    usual = {length for length in DEFAULT_LENGTHS if length <= plan.max_length}
    return tuple(sorted(usual | ({plan.max_length} if plan.max_length else set())))


def document(plan: Plan, lengths: Sequence[int] | None = None) -> dict[str, Any]:
    tight = plan.bottleneck
    rows = table_lengths(plan, lengths)
    return {
        "schema": SCHEMA,
        "model": plan.model,
        "family": plan.family,
        "fingerprint": fingerprint(plan),
        "layout_fingerprint": layout_fingerprint(plan),
        "fits": plan.fits,
        "problem": plan.problem or None,
        "kv_dtype": plan.kv_dtype,
        "state_dtype": plan.state_dtype,
        "rope": plan.rope or None,
        "sheet_bytes": tight.sheet_bytes,
        "sheets": tight.sheets,
        "pool_bytes": tight.pool_bytes,
        "kinds": [_kind(kind) for kind in tight.kinds],
        "max_length": plan.max_length,
        "requested_max_length": plan.requested_max_length,
        "model_max_length": plan.model_max_length,
        "concurrency": {str(length): bound.concurrency(plan, length) for length in rows},
        "concurrency_with_prefill": {
            str(length): bound.concurrency(plan, length, with_prefill=True) for length in rows
        },
        "waste": {str(length): _ratio(waste(plan, length)) for length in rows},
        "tail_waste": round(max(tail_ratio(stage) for stage in plan.stages), 6),
        "demand": {str(length): _demand(plan, tight, length) for length in rows},
        "minimum_sheets": {str(length): _minimum(plan, tight, length) for length in rows},
        "match_unit_tokens": plan.match_unit_tokens,
        "reuse_unit_tokens": plan.reuse_unit_tokens,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "bytes_per_token": plan.bytes_per_token,
        "ledger": _ledger(plan.ranks[plan.bottleneck_rank].ledger),
        "stages": [_stage(plan, stage, index, rows) for index, stage in enumerate(plan.stages)],
        "ranks": [_rank(plan, rank) for rank in plan.ranks],
        "bottleneck_rank": plan.bottleneck_rank,
        "index_view": index_view(plan),
        "host": _host(plan.host),
        "leases": _leases(plan),
        "notes": list(plan.notes),
        "plan": encode(plan),
    }


def index_view(plan: Plan) -> str:
    """Of the whole plan: `yes` only if every stage says so."""
    views = [(index, stage_index_view(stage)) for index, stage in enumerate(plan.stages) if stage.kinds]
    return next(
        (f"{view} on stage {index}" if len(views) > 1 else view for index, view in views if view != "yes"), "yes"
    )


def stage_index_view(stage: StagePlan) -> str:
    """`yes` if index × page bytes is a page's address for every kind, else `no, because …`."""
    for kind in stage.kinds:
        if tail := stage.sheet_bytes % kind.page_bytes:
            return f"no, because a sheet is {tail:,} B more than whole pages of {kind.name}"
    return "yes"


def _kind(kind: KindPlan) -> dict[str, Any]:
    return {
        "name": kind.name,
        "kind": kind.kind.kind,
        "layers": len(kind.layers),
        "groups": kind.groups,
        "page_tokens": kind.page_tokens,
        "page_bytes": kind.page_bytes,
        "pages_per_sheet": kind.pages_per_sheet,
        "window": kind.kind.numbers.get("window"),
        "chunk": kind.kind.numbers.get("chunk"),
        "tokens_per_state": kind.kind.tokens_per_unit,
        "fixed_bytes": kind.fixed_bytes,
        "bytes_per_token": _whole(kind.bytes_per_token),
        "token_bytes": _whole(kind.token_bytes),
    }


def _ratio(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _whole(value: float) -> float | int:
    return int(value) if value == int(value) else value


def _demand(plan: Plan, stage: StagePlan, length: int) -> dict[str, int]:
    pages = bound.resident(stage.kinds, length, plan.lookahead)
    return {kind.name: count for kind, count in zip(stage.kinds, pages, strict=True)}


def _minimum(plan: Plan, stage: StagePlan, length: int) -> int:
    return bound.minimum(stage.kinds, length, plan.lookahead, plan.reserved_pages)


def _ledger(lines: Sequence[LedgerLine]) -> list[dict[str, Any]]:
    return [{"name": line.name, "bytes": line.bytes, "basis": line.basis, "detail": line.detail} for line in lines]


def _stage(plan: Plan, stage: StagePlan, index: int, lengths: Sequence[int]) -> dict[str, Any]:
    return {
        "stage": index,
        "first_layer": stage.first_layer,
        "layers": stage.layers,
        "sheet_bytes": stage.sheet_bytes,
        "sheets": stage.sheets,
        "pool_bytes": stage.pool_bytes,
        "lease_sheets": stage.lease_sheets,
        "lease_bytes": stage.lease_sheets * stage.sheet_bytes,
        "max_length": stage.max_length,
        "index_view": stage_index_view(stage),
        "kinds": [_kind(kind) for kind in stage.kinds],
        "demand": {str(length): _demand(plan, stage, length) for length in lengths},
        "minimum_sheets": {str(length): _minimum(plan, stage, length) for length in lengths},
    }


def _rank(plan: Plan, rank: RankPlan) -> dict[str, Any]:
    stage = plan.stages[rank.stage]
    return {
        "rank": rank.rank,
        "stage": rank.stage,
        "tensor_rank": rank.tensor_rank,
        "first_layer": stage.first_layer,
        "layers": stage.layers,
        "sheets": stage.sheets,
        "sheet_bytes": stage.sheet_bytes,
        "pool_bytes": rank.pool_bytes,
        "idle_bytes": rank.idle_bytes,
        "ledger": _ledger(rank.ledger),
    }


def _host(host: HostPlan | None) -> dict[str, Any] | None:
    """A single kind gives plain integers; several give an object by kind."""
    if host is None:
        return None
    single = len(host.pages) == 1
    return {
        "budget_bytes": host.budget_bytes,
        "block_bytes": host.block_bytes,
        "blocks": host.blocks,
        "pages": next(iter(host.pages.values())) if single else dict(host.pages),
        "page_bytes": next(iter(host.page_bytes.values())) if single else dict(host.page_bytes),
        "warm_sessions": host.warm_sessions,
        "session_tokens": host.session_tokens,
    }


def _leases(plan: Plan) -> dict[str, Any] | None:
    """None: nothing can be leased."""
    held = lease_memory(plan)
    if held is None:
        return None
    return {**asdict(held), "lease_sheets": list(held.lease_sheets), "rows": [asdict(row) for row in held.rows]}


def load(path: Path) -> tuple[Plan, Json]:
    """A saved plan and its document, verified: schema, completeness, fingerprint, and every table in it."""
    try:
        saved = json.loads(path.read_text())
    except OSError as error:
        raise PlanFileError(f"cannot read the plan {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PlanFileError(
            f"{path} is not a plan: it is not JSON ({error}); make it with quire plan --output"
        ) from error
    return plan_of(saved, str(path)), saved


def plan_of(saved: object, source: str) -> Plan:
    schema = saved.get("schema") if isinstance(saved, dict) else None
    if not isinstance(saved, dict) or schema != SCHEMA:
        raise PlanFileError(f"{source} has schema {schema!r}, this version reads {SCHEMA!r}: make the plan again")
    try:
        plan, lengths = decode(saved["plan"]), [int(length) for length in saved["waste"]]
        with np.errstate(divide="raise", over="raise", invalid="raise"):
            expected = json.loads(json.dumps(document(plan, lengths)))
    except (LookupError, ArithmeticError, TypeError, ValueError, AttributeError, RecursionError, QuireError) as error:
        raise PlanFileError(f"{source} is damaged ({error}): make the plan again with quire plan --output") from error
    for field, value in expected.items():
        if saved.get(field) != value:
            raise PlanFileError(
                f"{source} was changed after it was made: its {field} is not what its contents give (fingerprint "
                f"{expected['fingerprint'][:12]}…); make the plan again with quire plan --output"
            )
    return plan


def save(document: Json, path: Path) -> None:
    try:
        path.write_text(json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise PlanFileError(f"cannot write the plan to {path}: {error.strerror}") from error


def is_plan_file(path: Path) -> bool:
    """Whether a file says of itself that it is a plan, of whatever version. Weights are not read to find out."""
    try:
        text = path.read_text() if _begins_an_object(path) else ""
    except (OSError, ValueError):
        return False
    return re.search(r'"schema"\s*:\s*"quire\.plan/', text) is not None


def _begins_an_object(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b"{")
