"""Leases for people: times on the wall clock, refusals as sentences. The engine's clock starts anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from quire.core.units import format_bytes
from quire.engine.engine import Engine
from quire.prefix.leases import Lease, LeaseAnswer, LeaseEnding, LeaseRefusal, Where


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """A lease that is granted, or why it is not and what is possible. Times are those of `time.time()`."""

    name: str
    is_granted: bool
    tokens: int = 0
    """Granted: of the prefix that stays; refused: those that were asked for."""
    until: float | None = None
    """Granted: when it ends. None: a request computes its tokens, and the time is counted from its end."""
    refusal: str = ""
    """memory, quota, absent, disabled; nothing_computed: the request left nothing to lease; empty if granted"""
    earliest: float | None = None
    """Refused for memory: when enough of the leases that are held now will have ended."""
    fewer_tokens: int = 0
    """Refused: a shorter prefix of the same tokens that would be granted now."""
    size_bytes: int = 0
    """What it takes, or would."""
    limit_bytes: int = 0
    """Refused: the memory, or the quota, that it exceeds."""
    owner: str = ""
    """The tenant; empty for the library's."""
    held_tokens: int = 0
    """Refused: of the session's earlier lease, which stays until `until`."""
    where: str = Where.POOL.value
    """Granted: `pool` or `host`."""
    elsewhere: str = ""
    """Refused: a tier that has room for it once its tokens are computed."""

    @property
    def message(self) -> str:
        """Why it is refused and what is possible, in one line; empty if granted."""
        if self.refusal == LeaseEnding.NOTHING:
            return "the request left nothing that can be leased: it is shorter than the reuse unit, or was not computed"
        return _SENTENCES[LeaseRefusal(self.refusal)](self) if self.refusal else ""


def _exceeds(report: LeaseReport, what: str) -> str:
    size = f"{report.tokens:,} tokens take {format_bytes(report.size_bytes)} more"
    fewer = f"; {report.fewer_tokens:,} tokens would be granted now" if report.fewer_tokens else ""
    return f"{size}, and {what} of {format_bytes(report.limit_bytes)} has no room for them{fewer}"


def _memory(report: LeaseReport) -> str:
    if not report.limit_bytes and not report.elsewhere:
        return "there is no lease memory: give --lease-memory"
    when = ""
    if report.earliest is not None:
        when = f"; other leases leave room in {max(0.0, report.earliest - time.time()):,.0f} s"
    other = "; host memory has room: lease these tokens once they are computed" if report.elsewhere else ""
    return _exceeds(report, "the lease memory") + when + other


_SENTENCES: Mapping[LeaseRefusal, Callable[[LeaseReport], str]] = {
    LeaseRefusal.MEMORY: _memory,
    LeaseRefusal.QUOTA: lambda report: _exceeds(report, "the quota") + "; release a lease, or let one end",
    LeaseRefusal.ABSENT: lambda _: "no prefix of these tokens is in the cache: send them in a request with retain",
    LeaseRefusal.DISABLED: lambda _: "prefixes of this model are not reused, so none can be leased",
}


def report_answer(answer: LeaseAnswer, engine: Engine, owner: str = "") -> LeaseReport:
    """What the engine answered, on the wall clock."""
    refusal = answer.refusal.value if answer.refusal else ""
    return LeaseReport(
        answer.name,
        not refusal,
        answer.tokens,
        _on_wall(answer.until, engine),
        refusal,
        _on_wall(answer.earliest, engine),
        answer.fewer_tokens,
        answer.size_bytes,
        answer.limit_bytes,
        owner,
        where=answer.where.value,
        elsewhere=answer.elsewhere.value if answer.elsewhere else "",
    )


def report_held(lease: Lease, engine: Engine) -> LeaseReport:
    until, terms = _on_wall(lease.until, engine), lease.terms
    where, size = lease.where.value, lease.size_bytes
    return LeaseReport(terms.name, True, lease.tokens, until, size_bytes=size, owner=terms.owner, where=where)


def held_leases(engine: Engine) -> list[LeaseReport]:
    """Leases that are held, the first to end first. Those whose time is over are left out."""
    now = engine.clock()
    held = sorted((lease for lease in engine.leases() if lease.until > now), key=lambda one: one.until)
    return [report_held(lease, engine) for lease in held]


def outcome(answer: LeaseAnswer, engine: Engine, owner: str = "") -> LeaseReport:
    """Of the lease that a request asked for, after it has ended: what is held now."""
    held = next((one for one in engine.leases() if one.terms.name == answer.name), None)
    report = report_answer(answer, engine, owner)
    if not report.is_granted:
        own = None if held is None or held.terms.owner != owner else held
        return report if own is None else replace(report, held_tokens=own.tokens, until=_on_wall(own.until, engine))
    if held is None:
        return replace(report, is_granted=False, refusal=LeaseEnding.NOTHING.value, tokens=0, size_bytes=0)
    return report_held(held, engine)


def _on_wall(at: float | None, engine: Engine) -> float | None:
    return None if at is None else time.time() + at - engine.clock()
