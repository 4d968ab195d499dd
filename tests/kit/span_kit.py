"""Traces of a caller's own, and spans as a tree."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from collector import SpanRead

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
"""Milliseconds between two batches."""
SERVER, INTERNAL = 2, 1
"""Kinds of spans."""
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Keys:
    file: Path
    alice: str
    bob: str


def parent_headers(flags: str = "01") -> tuple[str, dict[str, str]]:
    """A trace of the caller's own."""
    trace = f"{next(_numbers):032x}"
    return trace, {"traceparent": f"00-{trace}-{'c' * 16}-{flags}"}


def tree(spans: list[SpanRead]) -> tuple[SpanRead, list[SpanRead]]:
    """The span of the call, and its children in the order of time."""
    (root,) = (one for one in spans if one.kind == SERVER)
    children = [one for one in spans if one is not root]
    assert {one.parent for one in children} <= {root.span}
    assert {one.kind for one in children} <= {INTERNAL}
    return root, children


def by_request(phases: list[SpanRead]) -> dict[str, list[SpanRead]]:
    found: dict[str, list[SpanRead]] = {}
    for one in phases:
        found.setdefault(one.attributes["quire.request"], []).append(one)
    return found
