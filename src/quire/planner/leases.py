"""What lease memory holds, and what it costs: sessions of a length, and the longest length that stays.

pool  ┃████ longest request alone ████┃░░ leases ░░┃···· more requests, cache ····┃
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.errors import PlanError
from quire.core.search import greatest
from quire.core.units import format_bytes
from quire.plan import bound
from quire.plan.make import LENGTH_WITHOUT_LIMIT
from quire.plan.plan import Plan
from quire.plan.records import Records
from quire.prefix.lease_sizes import lease_pages, lease_sheets
from quire.tiers.host_leases import LEASE_SHARE

SESSION_TOKENS = 32_768
"""Length of the sessions that lease memory is expressed in; at most half of the longest length without leases,
and never more than a request may have."""
MOST_ROWS = 6


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """One size of lease memory, in the pool of the plan."""

    lease_bytes: int
    """As --lease-memory: on each rank."""
    sessions: int
    max_length: int


@dataclass(frozen=True, slots=True)
class LeaseMemory:
    """What the lease memory of a plan holds."""

    lease_sheets: tuple[int, ...]
    """By stage."""
    lease_bytes: int
    """On a rank of the stage with most."""
    session_tokens: int
    sessions: int
    """Of that many tokens, which share nothing."""
    session_bytes: int
    """The --lease-memory that one of them needs."""
    host_sessions: int | None
    """As many more of them, while they pause, in host memory; None: there is none."""
    rows: tuple[LeaseRow, ...]


def lease_memory(plan: Plan, session_tokens: int | None = None) -> LeaseMemory | None:
    """None: prefixes are not reused, or no request fits, so nothing can be leased."""
    if plan.no_reuse_because or not plan.max_length:
        return None
    longest = length_beside(plan, [0] * len(plan.stages))
    tokens = session_tokens or min(_usual_tokens(longest), plan.max_length)
    return LeaseMemory(
        lease_sheets=tuple(stage.lease_sheets for stage in plan.stages),
        lease_bytes=max(stage.lease_sheets * stage.sheet_bytes for stage in plan.stages),
        session_tokens=tokens,
        sessions=sessions_held(plan, tokens),
        session_bytes=bytes_for(plan, lease_sheets(plan, tokens)),
        host_sessions=_host_sessions(plan, tokens),
        rows=_rows(plan, tokens),
    )


def _host_sessions(plan: Plan, tokens: int) -> int | None:
    if plan.host is None:
        return None
    return int(LEASE_SHARE * plan.host.blocks) // Records(plan).session_blocks(tokens)


def require_lease_memory(plan: Plan, lease_bytes: int | None) -> None:
    """Refuses a --lease-memory that holds nothing."""
    if not lease_bytes:
        return
    if plan.no_reuse_because:
        why = f"{plan.no_reuse_because}, so no prefix can be leased"
        raise PlanError(f"--lease-memory {format_bytes(lease_bytes)} has no use: {why}; leave it out")
    sheet = max(stage.sheet_bytes for stage in plan.stages)
    if lease_bytes < sheet:
        size, one = format_bytes(lease_bytes), format_bytes(sheet)
        raise PlanError(f"--lease-memory {size} is less than one sheet of {one}: give at least {sheet}, or 0")


def _usual_tokens(longest: int) -> int:
    half = max(1, min(SESSION_TOKENS, longest // 2))
    return half - half % 1024 if half > 1024 else half


def sessions_held(plan: Plan, tokens: int) -> int:
    """How many leases of `tokens` tokens, which share nothing, the plan's lease memory holds."""
    available = [stage.lease_sheets for stage in plan.stages]
    room = min(
        stage.lease_sheets * kind.pages_per_sheet // max(1, pages)
        for stage, own in zip(plan.stages, lease_pages(plan, tokens), strict=True)
        for kind, pages in zip(stage.kinds, own, strict=True)
    )
    return greatest(0, room, lambda count: _fit(lease_sheets(plan, tokens, count), available))


def bytes_for(plan: Plan, sheets: Sequence[int]) -> int:
    """The least --lease-memory that gives each stage so many sheets."""
    return max(count * stage.sheet_bytes for count, stage in zip(sheets, plan.stages, strict=True))


def length_beside(plan: Plan, sheets: Sequence[int]) -> int:
    """The longest length in the plan's pool if leases may take so many sheets of each stage."""
    limit = plan.requested_max_length or plan.model_max_length or LENGTH_WITHOUT_LIMIT
    ahead, reserved = plan.lookahead, plan.reserved_pages
    return min(
        bound.longest(stage.kinds, lambda _, left=stage.sheets - count: left, ahead, reserved, limit)  # type: ignore[misc]
        for stage, count in zip(plan.stages, sheets, strict=True)
        if stage.kinds
    )


def _rows(plan: Plan, tokens: int) -> tuple[LeaseRow, ...]:
    """No lease, one, two, four … as long as a request may be as long as a session."""
    rows = [LeaseRow(0, 0, length_beside(plan, [0] * len(plan.stages)))]
    sessions = 1
    while len(rows) < MOST_ROWS:
        sheets = lease_sheets(plan, tokens, sessions)
        if (
            not _fit(sheets, [stage.sheets for stage in plan.stages])
            or (length := length_beside(plan, sheets)) < tokens
        ):
            break
        rows.append(LeaseRow(bytes_for(plan, sheets), sessions, length))
        sessions *= 2
    return tuple(rows)


def _fit(sheets: Sequence[int], available: Sequence[int]) -> bool:
    return all(count <= most for count, most in zip(sheets, available, strict=True))
