"""A plan as JSON and back, equal. The fingerprint covers every field that shapes memory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from quire.core.errors import PlanFileError, QuireError
from quire.core.memory import Memory
from quire.kinds import Kind, kind_of
from quire.plan.layout import Entry
from quire.plan.plan import HostPlan, KindPlan, LedgerLine, Plan, RankPlan, StagePlan

SCHEMA = "quire.plan/1"
_WITHOUT_EFFECT = ("notes",)

Json = dict[str, Any]


def encode(plan: Plan) -> Json:
    return {field.name: _encode(getattr(plan, field.name)) for field in dataclasses.fields(plan)}


def _encode(value: object) -> Any:
    if isinstance(value, Kind):
        return {"kind": value.kind, **{f.name: getattr(value, f.name) for f in dataclasses.fields(value)}}
    if isinstance(value, Entry):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if dataclasses.is_dataclass(value):
        return {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    return value


def decode(data: Json) -> Plan:
    host = data["host"]
    return Plan(
        **{
            **data,
            "stages": tuple(_decode_stage(stage) for stage in data["stages"]),
            "ranks": tuple(
                RankPlan(**{**rank, "ledger": tuple(LedgerLine(**line) for line in rank["ledger"])})
                for rank in data["ranks"]
            ),
            "host": host and HostPlan(**{**host, **{k: MappingProxyType(host[k]) for k in ("pages", "page_bytes")}}),
            "notes": tuple(data["notes"]),
        }
    )


def _decode_stage(data: Json) -> StagePlan:
    return StagePlan(**{**data, "kinds": tuple(_decode_kind_plan(kind) for kind in data["kinds"])})


def _decode_kind_plan(data: Json) -> KindPlan:
    kind = kind_of(Memory(parts=(), **data["kind"]))
    manifest = tuple(Entry(*entry) for entry in data["manifest"])
    return KindPlan(**{**data, "kind": kind, "layers": tuple(data["layers"]), "manifest": manifest})


def fingerprint(plan: Plan) -> str:
    return _digest({name: value for name, value in encode(plan).items() if name not in _WITHOUT_EFFECT})


def layout_fingerprint(plan: Plan) -> str:
    """Equal for plans whose pages can be exchanged byte by byte: the same model, dtypes, ranks and manifests."""
    stages = [[_encode(kind) for kind in stage.kinds] for stage in plan.stages]
    return _digest([plan.model, plan.kv_dtype, plan.state_dtype, plan.tensor_parallel, stages])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def save(document: Json, path: Path) -> None:
    try:
        path.write_text(json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise PlanFileError(f"cannot write the plan to {path}: {error.strerror}") from error


def is_plan_file(path: Path) -> bool:
    """Whether a file says of itself that it is a plan, of whatever version."""
    try:
        start = path.read_text()[:200] if path.is_file() else ""
    except (OSError, UnicodeDecodeError):
        return False
    return re.match(r'\s*\{\s*"schema"\s*:\s*"quire\.plan/', start) is not None


def load(path: Path) -> Plan:
    """A saved plan, verified: schema, completeness and fingerprint."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise PlanFileError(f"cannot read the plan {path}: {error.strerror}") from error
    except ValueError as error:
        raise PlanFileError(
            f"{path} is not a plan: it is not JSON ({error}); make it with quire plan --output"
        ) from error
    return plan_of(document, str(path))


def plan_of(document: object, source: str) -> Plan:
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(document, dict) or schema != SCHEMA:
        raise PlanFileError(f"{source} has schema {schema!r}, this version reads {SCHEMA!r}: make the plan again")
    try:
        plan = decode(document["plan"])
    except (KeyError, TypeError, AttributeError, QuireError) as error:
        raise PlanFileError(f"{source} is damaged ({error}): make the plan again with quire plan --output") from error
    found, expected = fingerprint(plan), document.get("fingerprint")
    if found != expected:
        raise PlanFileError(
            f"{source} was changed after it was made: its fingerprint says {str(expected)[:12]}…, its contents give "
            f"{found[:12]}…; make the plan again with quire plan --output"
        )
    return plan
