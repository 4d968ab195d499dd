"""Leases in a tier: all their records are there, whoever continues one loads all of it, a failed load breaks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quire.check import state
from quire.check.definitions import Violation
from quire.core.events import LoadFailed, LoadStarted
from quire.core.request import Request
from quire.core.tier import Load
from quire.plan.records import Records
from quire.prefix.keys import end_key, keys_of
from quire.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True, eq=False)
class Promised:
    """A lease as its owner knows it."""

    request: Request
    """One that begins with its tokens, and would compute one more."""
    tokens: int
    until: float


class Storage(Protocol):
    """A tier, as far as leases need it."""

    def names(self) -> set[bytes]:
        """Of records that can be loaded, or will be."""
        ...


class Away:
    """Leases in a tier: every record of theirs is there, and whoever continues one loads all of it."""

    def __init__(self, scheduler: Scheduler, tier: Storage | None) -> None:
        self._tier, self._records, self._scheduler = tier, Records(scheduler.plan), scheduler
        self.of: dict[str, Promised] = {}
        self.due: dict[str, list[str]] = {}
        """By request that was admitted with less: the leases that it continues. A load of them must begin."""
        self._loads: dict[str, Promised] = {}
        """By request: the longest lease that it loads."""
        self.failed: dict[str, Promised] = {}
        """Leases whose records could not be loaded in this turn: they must be broken, and no others."""

    def note(self, name: str, lease: Promised) -> None:
        self.of[name] = lease

    def note_less(self, request: str, name: str) -> None:
        """It was admitted with less than a lease in the tier. After a load of its own has failed, it computes."""
        if _may_load(self._scheduler, request):
            self.due.setdefault(request, []).append(name)

    def note_load(self, event: LoadStarted | LoadFailed) -> None:
        if isinstance(event, LoadFailed):
            self._note_failed(self._loads.pop(event.request, None), event.tokens)
            return
        self._loads.pop(event.request, None)
        names = self.due.pop(event.request, [])
        if any(self.of[name].tokens > event.tokens for name in names):
            raise Violation(f"request {event.request} continues leases {names}, and loads {event.tokens} tokens")
        if names:
            self._loads[event.request] = max((self.of[name] for name in names), key=lambda one: one.tokens)

    def _note_failed(self, loaded: Promised | None, tokens: int) -> None:
        """All leases of the prefix that failed count on the same records, also those granted while it was loaded."""
        if loaded is not None and loaded.tokens == tokens:
            self.failed |= {name: own for name, own in self.of.items() if _is_same_prefix(own, loaded)}

    def check(self) -> None:
        for request, names in self.due.items():
            raise Violation(f"request {request} has less than leases {names}, which are in a tier, and loads nothing")
        for name, lease in self.failed.items():
            if self.of.get(name) is lease:
                raise Violation(f"a load of lease {name} has failed, and the lease is not broken")
        self.failed.clear()
        records: set[bytes] = set()
        for name, lease in self.of.items():
            own = self._names(lease)
            if self._tier is None or not self._tier.names() >= own:
                raise Violation(f"lease {name} is in a tier, which lacks a record of it")
            records |= own
        self._check_share(records)

    def size(self, name: str) -> int:
        """Bytes of the records of a lease."""
        return sum(self._records_of(self.of[name]).values())

    def _names(self, lease: Promised) -> set[bytes]:
        return set(self._records_of(lease))

    def _records_of(self, lease: Promised) -> dict[bytes, int]:
        root, unit = state.root(self._scheduler, lease.request.scope), self._records.unit_tokens
        tokens = lease.request.prompt[: lease.tokens]
        keys = keys_of(root, tokens, unit)
        rest = tokens[len(keys) * unit :]
        end = end_key([root, *keys][-1], rest) if len(rest) else b""
        return dict(self._records.wanted(Load(0, "", tuple(keys), lease.tokens, end)))

    def _check_share(self, names: set[bytes]) -> None:
        blocks = _host_blocks(self._scheduler, names)
        if blocks is not None and 2 * blocks[0] > blocks[1]:
            raise Violation(f"leases take {blocks[0]} of {blocks[1]} blocks of host memory, and may take half")


def _is_same_prefix(one: Promised, other: Promised) -> bool:
    is_alike = one.tokens == other.tokens and one.request.scope == other.request.scope
    return is_alike and np.array_equal(one.request.prompt[: one.tokens], other.request.prompt[: one.tokens])


def _may_load(scheduler: Scheduler, name: str) -> bool:
    """Whether no load of a running request has failed."""
    return scheduler.running.tickets[scheduler.rows.row_of[name]].may_load


def _host_blocks(scheduler: Scheduler, names: set[bytes]) -> tuple[int, int] | None:
    """Blocks of host memory that these records take, and all there are; None: there is no stack of tiers."""
    stack = getattr(scheduler.reuse.stores.keeper, "stack", None)
    if stack is None:
        return None
    records = [*stack.held.cache._records.values(), *(one.record for one in stack.stores._open.values())]
    own = {record.name: len(record.blocks) for record in records if record.name in names}
    return sum(own.values()), stack.held.cache.blocks
