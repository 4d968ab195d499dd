"""Where a call goes: to a replica that the router chooses, to the one that has what it names, to any, or to all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

Json = dict[str, Any]
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
PLACED = (*GENERATING, "/v1/cache/warm", "/v1/leases", "/v1/room")
"""POST: where it goes depends on its prompt."""
TOGETHER = (("GET", "/v1/leases"), ("GET", "/v1/cache"), ("DELETE", "/v1/cache"), ("GET", "/metrics"))
_HELD = re.compile(r"/v1/(responses|leases|requests)/[^/]+(/[a-z_]+)?")
_COUNTED = "/v1/responses/input_tokens"


class Kind(Enum):
    PLACED = "the replica that the router chooses"
    HELD = "the replica that has what the call names: each is asked until one knows it"
    ANY = "any replica: all answer alike"
    TOGETHER = "all replicas, whose answers are merged"


@dataclass(frozen=True, slots=True)
class Destination:
    kind: Kind
    lease: str = ""
    """The replica that has this lease comes first."""
    by_reuse: bool = False
    """It leases what is in a cache: the replica that has most of the prompt."""


def destination(method: str, path: str, body: Json | None) -> Destination:
    """`body`: a call's JSON object, if it has one."""
    fields = body or {}
    if ("GET" if method == "HEAD" else method, path) in TOGETHER:
        return Destination(Kind.TOGETHER)
    if path in (*GENERATING, _COUNTED) and _names_an_answer(fields):
        return Destination(Kind.HELD)
    if method == "POST" and path in PLACED:
        return Destination(Kind.PLACED, _lease(path, fields), path == "/v1/leases")
    if path != _COUNTED and _HELD.fullmatch(path):
        return Destination(Kind.HELD)
    return Destination(Kind.ANY)


def _names_an_answer(body: Json) -> bool:
    """An earlier answer that this call continues, or an item of one."""
    items = body.get("input")
    refers = isinstance(items, list) and any(isinstance(one, dict) and set(one) <= {"id", "type"} for one in items)
    return bool(body.get("fork_from") or body.get("previous_response_id") or refers)


def is_generating(method: str, path: str) -> bool:
    return method == "POST" and path in GENERATING


def _lease(path: str, body: Json) -> str:
    """The lease that a call moves along."""
    retain = body.get("retain")
    name = body.get("name") if path == "/v1/leases" else retain.get("session") if isinstance(retain, dict) else None
    return name if isinstance(name, str) else ""
