"""A plan to JSON and back without loss. The fingerprint covers every field that shapes memory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from quire.core.memory import Memory
from quire.kinds import Kind, kind_of
from quire.plan.layout import Entry
from quire.plan.plan import HostPlan, KindPlan, LedgerLine, Plan, RankPlan, StagePlan

SCHEMA = "quire.plan/3"
_WORDS = ("notes", "problem")

Json = dict[str, Any]


def encode(plan: Plan) -> Json:
    return {field.name: _encode(getattr(plan, field.name)) for field in dataclasses.fields(plan)}


def _encode(value: object) -> Any:
    if isinstance(value, Kind):
        return {"kind": value.kind, **value.numbers}
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
    aliases = tuple((layer, source) for layer, source in data["aliases"])
    return StagePlan(**{**data, "kinds": tuple(_decode_kind_plan(kind) for kind in data["kinds"]), "aliases": aliases})


def _decode_kind_plan(data: Json) -> KindPlan:
    numbers = dict(data["kind"])
    kind = kind_of(Memory.of(numbers.pop("kind"), (), numbers))
    manifest = tuple(Entry(*entry) for entry in data["manifest"])
    return KindPlan(**{**data, "kind": kind, "layers": tuple(data["layers"]), "manifest": manifest})


def fingerprint(plan: Plan) -> str:
    """Over everything but texts and the share of leases: two plans that differ in those alone have the same memory."""
    numbers = {name: value for name, value in encode(plan).items() if name not in _WORDS}
    for rank in numbers["ranks"]:
        rank["ledger"] = [{**line, "detail": ""} for line in rank["ledger"]]
    for stage in numbers["stages"]:
        del stage["lease_sheets"]
    if not plan.rope:  # so that plans of all other models keep the fingerprints from before this field existed
        del numbers["rope"]
    return _digest(numbers)


def layout_fingerprint(plan: Plan) -> str:
    """Equal for plans whose pages can be exchanged byte by byte: the same model, dtypes, ranks, manifests and rotary
    frequencies."""
    stages = [[[_encode(kind) for kind in stage.kinds], stage.aliases] for stage in plan.stages]
    rope = [plan.rope] if plan.rope else []
    return _digest([plan.model, plan.kv_dtype, plan.state_dtype, plan.tensor_parallel, stages, *rope])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
