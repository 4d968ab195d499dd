"""Leases in the engine's process: answers questions of the HTTP process, and remembers which leases broke.

HTTP ── AskLeases(GrantLease | EndLease | ListLeases | LeaseOutcome) ──▶ engine
HTTP ◀── Reply(LeaseReply) ── engine
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from quire.core.errors import InputError
from quire.core.events import Event
from quire.core.request import Tokens
from quire.engine.engine import Engine, Stream
from quire.explain.leases import LeaseReport, held_leases, outcome, report_answer
from quire.prefix.leases import BREAKS, LeaseAnswer, LeaseEnded, LeaseHeld, LeaseTerms

Value = TypeVar("Value")
REMEMBERED = 4096
"""Answers to requests that asked for a lease, and broken leases, that are kept until their tenant asks."""


@dataclass(frozen=True, slots=True, eq=False)
class GrantLease:
    """Lease the longest prefix of these tokens that is in the cache."""

    terms: LeaseTerms
    scope: str
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class EndLease:
    owner: str
    name: str


@dataclass(frozen=True, slots=True)
class ListLeases:
    owner: str
    is_admin: bool = False
    """Leases of all owners."""


@dataclass(frozen=True, slots=True)
class LeaseOutcome:
    """What became of the lease that a request asked for."""

    owner: str
    request: str


LeaseQuestion = GrantLease | EndLease | ListLeases | LeaseOutcome


@dataclass(frozen=True, slots=True)
class BrokenLease:
    """A lease that ended before its time, and not by its owner's wish."""

    name: str
    owner: str
    ending: str
    tokens: int
    at: float
    """As `time.time()`."""


@dataclass(frozen=True, slots=True)
class LeaseReply:
    leases: tuple[LeaseReport, ...] = ()
    broken: tuple[BrokenLease, ...] = ()
    """The owner's, since the last reply to it."""
    problem: str = ""
    """Why it could not be done; empty if it was."""


class EngineLeases:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._answers: OrderedDict[str, LeaseAnswer] = OrderedDict()
        """By request."""
        self._owners: dict[str, str] = {}
        """Of leases that are held."""
        self._broken: OrderedDict[str, BrokenLease] = OrderedDict()
        """By lease."""
        engine.scheduler.events.subscribe(self._listen)

    def note(self, stream: Stream) -> None:
        """A request was accepted."""
        if stream.lease is not None:
            _keep(self._answers, stream.request.name, stream.lease)

    def answer(self, question: LeaseQuestion) -> LeaseReply:
        owner = question.terms.owner if isinstance(question, GrantLease) else question.owner
        try:
            leases = tuple(self._leases(question))
        except InputError as error:
            return LeaseReply(broken=self._take_broken(owner), problem=str(error))
        return LeaseReply(leases, self._take_broken(owner))

    def _leases(self, question: LeaseQuestion) -> list[LeaseReport]:
        match question:
            case GrantLease(terms, scope, tokens):
                return [report_answer(self._engine.lease(terms, scope, tokens), self._engine, terms.owner)]
            case EndLease(_, name):
                self._engine.release_lease(name)
                return []
            case ListLeases(owner, is_admin):
                return [one for one in held_leases(self._engine) if is_admin or one.owner == owner]
            case LeaseOutcome(owner, request):
                answer = self._answers.pop(request, None)
                return [] if answer is None else [outcome(answer, self._engine, owner)]

    def _listen(self, event: Event) -> None:
        if isinstance(event, LeaseHeld):
            owners = {one.terms.name: one.terms.owner for one in self._engine.leases()}
            self._owners[event.lease] = owners.get(event.lease, "")
        elif isinstance(event, LeaseEnded):
            is_held = event.lease in self._owners and any(
                one.terms.name == event.lease for one in self._engine.leases()
            )
            owner = self._owners.get(event.lease, "") if is_held else self._owners.pop(event.lease, "")
            if event.ending in BREAKS:
                broken = BrokenLease(event.lease, owner, event.ending.value, event.tokens, time.time())
                _keep(self._broken, event.lease, broken)

    def _take_broken(self, owner: str) -> tuple[BrokenLease, ...]:
        names = [name for name, one in self._broken.items() if one.owner == owner]
        return tuple(self._broken.pop(name) for name in names)


def _keep(kept: OrderedDict[str, Value], name: str, value: Value) -> None:
    kept[name] = value
    if len(kept) > REMEMBERED:
        kept.popitem(last=False)
