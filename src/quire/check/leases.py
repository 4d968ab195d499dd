"""Leases: what is promised of a held one, from the checker's own books and the definition of the attention.

held        a request that begins with its tokens can start after all of them, at any step; and it does
waits       for a lease that is held, and for one in a tier only until a load of its own has failed
refused     nothing has changed: the lease of that name that was there is still held
together    with what was granted to requests they fit lease memory and their keys' quotas (`lease_room.py`)
ends        at its time, unless a request of its session is in progress; by release; broken when the cache is dropped
afterwards  nothing counts as leased any more
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from random import Random
from typing import NamedTuple

import numpy as np

from quire.check import state
from quire.check.definitions import Ints, Violation
from quire.check.laws import Law
from quire.check.lease_room import LeaseRoom, Quotas
from quire.check.prefixes import Boundary, Prefixes, find_known
from quire.check.requests import Arrival
from quire.check.scripts import Script
from quire.check.tier_leases import Away, Promised, Storage
from quire.core.events import Event, LoadFailed, LoadStarted, RequestAdmitted, RequestEnded, RequestWaits
from quire.core.reasons import Why
from quire.core.request import Request, Retain, Tokens
from quire.prefix.keys import keys_of
from quire.prefix.leases import BREAKS, LeaseAnswer, LeaseEnded, LeaseEnding, LeaseHeld, LeaseMoved, LeaseRefusal
from quire.scheduler.scheduler import Scheduler

STEP_SECONDS = 1
"""A request that is cancelled between two steps ended, for its lease, at the step before."""
ALL_SCOPES = "all scopes"
RETAIN_RATES = (0.0, 0.2, 0.7)
"""How many of an episode's requests ask for a lease."""


class Asked(NamedTuple):
    """A lease that a client asks for: of the longest prefix of these tokens that is in the cache."""

    owner: str
    scope: str
    tokens: Tokens
    seconds: float


class Leased(Law):
    def __init__(
        self,
        scheduler: Scheduler,
        requests: Mapping[str, Request],
        scripts: Mapping[str, Script],
        now: Callable[[], int],
        tier: Storage | None = None,
        *,
        quotas: Quotas,
        has_failed: Callable[[str], bool],
    ) -> None:
        """`quotas`: by tenant, in bytes; `has_failed`: whether a load of a request failed, so that it computes."""
        self.scheduler, self.requests, self.scripts, self.now = scheduler, requests, scripts, now
        self.away = Away(scheduler, tier)
        self.held: dict[str, Promised] = {}
        self.asked: dict[str, Asked] = {}
        """By lease, of those that were asked for tokens in the cache."""
        self.over: dict[str, Promised] = {}
        """By lease, the latest of that name that ended because its time was over."""
        self.booked: dict[str, str] = {}
        """By lease, of those that were granted with a request: its name."""
        self.quotas, self._has_failed = quotas, has_failed
        self.releasing = ""
        """The lease that is being released."""
        self.is_failing = False
        """A step fails in this turn."""
        self.dropping: str | None = None
        """The scope whose cache is being dropped, or ALL_SCOPES."""
        self._own: dict[str, Tokens] = {}
        self.prefixes = Prefixes(scheduler, lambda name: self._own[name])
        self.room = LeaseRoom(scheduler, self.prefixes, quotas, lambda name: self.away.size(name))

    # ── the books ─────────────────────────────────────────────────────────

    def note_booked(self, request: Request, answer: LeaseAnswer | None) -> None:
        if answer is not None:
            self._check_time(answer)
        if answer is not None and answer.refusal is LeaseRefusal.MEMORY and answer.earliest is not None:
            booked = [self._longest(one) for one in (*self.booked.values(), request.name)]
            self.room.check_memory(self._left(answer.earliest + STEP_SECONDS), booked)
        if answer is not None and answer.refusal is None:
            self.booked[answer.name] = request.name
            self._check_room()

    def check_answer(self, asked: Asked, answer: LeaseAnswer, before: Promised | None) -> None:
        """`before`: the lease of that name. An answer that refuses changes nothing, and says why truly."""
        after, is_refused = self.held.get(answer.name), answer.refusal is not None
        if before is self.over.get(answer.name):
            before = None  # its time was over, so that it has ended first
        if is_refused != (after is before) or (after is None and not is_refused):
            raise Violation(f"lease {answer.name} is answered by {answer}, and held as {after}, before as {before}")
        if before is not None and after is not None and self._is_begun(before, asked) and after.tokens < before.tokens:
            raise Violation(f"lease {answer.name} of {before.tokens} tokens is asked for again, and has {after.tokens}")
        if answer.refusal is LeaseRefusal.ABSENT and answer.name in self.away.of and self._is_begun(before, asked):
            raise Violation(f"lease {answer.name} is in a tier, and said to be absent when it is asked for again")
        self._check_time(answer)
        self._check_room()
        if answer.refusal is LeaseRefusal.MEMORY:
            self._check_needless(asked, answer)
        if answer.refusal is LeaseRefusal.MEMORY and answer.earliest is not None:
            self._check_possible(asked, answer.tokens, answer.earliest + STEP_SECONDS)
        if answer.fewer_tokens:
            self._check_possible(asked, answer.fewer_tokens, self.now())

    def _is_begun(self, lease: Promised | None, asked: Asked) -> bool:
        if lease is None:
            return False
        own = lease.request.prompt[: lease.tokens]
        return lease.request.scope == asked.scope and np.array_equal(own, asked.tokens[: lease.tokens])

    def _check_time(self, answer: LeaseAnswer) -> None:
        if answer.refusal is LeaseRefusal.MEMORY and answer.earliest is not None and answer.earliest <= self.now():
            raise Violation(f"lease {answer.name} is refused until {answer.earliest:g}, which is over")

    def _check_possible(self, asked: Asked, tokens: int, at: float) -> None:
        """A lease of so many tokens fits with those that are left at a time, if none is granted before."""
        wanted = self._wanted(asked, tokens)
        if wanted is None or not self.prefixes.is_proved(wanted):
            raise Violation(f"a lease of {tokens} tokens is said to be possible, and none can start after them")
        self.room.check_memory([*self._left(at), wanted], [self._longest(one) for one in self.booked.values()])

    def _check_needless(self, asked: Asked, answer: LeaseAnswer) -> None:
        """What is refused does not fit, now or when any lease has ended before the time that is named. Of requests in
        progress only bounds are known."""
        wanted = None if self.booked else self._wanted(asked, answer.tokens)
        if wanted is None:
            return
        ends = [one.until for name, one in self.held.items() if name not in self.away.of]
        for at in [self.now(), *sorted(ends)]:
            if at < (answer.earliest or inf) and self.room.surely_fit([*self._left(at), wanted]):
                raise Violation(f"a lease of {answer.tokens} tokens would fit at {at:g}, and is refused by {answer}")

    def _wanted(self, asked: Asked, tokens: int) -> Boundary | None:
        key = f"possible {len(self._own)}"
        own = self._own[key] = asked.tokens[: tokens + 1]
        return self.prefixes.boundary(Request(key, own, 1, scope=asked.scope), tokens)

    def _left(self, at: float) -> list[Boundary]:
        """Leases that are there at a time, if none is granted before."""
        return [one for name, one in self._boundaries().items() if name in self.booked or self.held[name].until > at]

    def on_event(self, event: Event) -> None:
        if isinstance(event, LeaseHeld):
            self._hold(event)
        elif isinstance(event, LeaseMoved):
            if event.lease not in self.held:
                raise Violation(f"lease {event.lease} moves to a tier, and is not held")
            self.away.note(event.lease, self.held[event.lease])
        elif isinstance(event, LeaseEnded):
            self._end(event)
        elif isinstance(event, RequestEnded):
            self._check_ended(event.request)
        elif isinstance(event, RequestAdmitted):
            self._check_hit(event)
        elif isinstance(event, LoadStarted | LoadFailed):
            self.away.note_load(event)
        elif isinstance(event, RequestWaits) and event.reason.code is Why.LEASED:
            self._check_waits(event.request)

    def _end(self, event: LeaseEnded) -> None:
        """A lease ends for a reason; one that is replaced was reported as held again before. What is granted to a
        request of its session goes with it if it counts on pages of the lease: not if the lease was in a tier."""
        if event.ending is LeaseEnding.REPLACED:
            return
        request, lease = self.booked.get(event.lease), self.held.pop(event.lease, None)
        if self.away.of.pop(event.lease, None) is None or event.ending not in BREAKS:
            self.booked.pop(event.lease, None)
        scope = lease.request.scope if lease else self.requests[request].scope if request else None
        is_right = {
            LeaseEnding.EXPIRED: lease is not None and self._is_over(lease, request),
            LeaseEnding.RELEASED: event.lease == self.releasing,
            LeaseEnding.DROPPED: self.dropping in (ALL_SCOPES, scope),
            LeaseEnding.TIER: event.lease in self.away.failed,
            LeaseEnding.FAILED: True,  # the books of the index say whether a step failed
            LeaseEnding.NOTHING: lease is None and request is not None and not self._cached(request),
        }
        if not is_right[event.ending]:
            raise Violation(f"lease {event.lease} ends at {self.now()} as {event.ending.value}, and was {lease}")
        if lease is not None and event.ending is LeaseEnding.EXPIRED:
            self.over[event.lease] = lease

    def _is_over(self, lease: Promised, request: str | None) -> bool:
        """Not while a request of its session is in progress."""
        is_next_turn = request is not None and find_known(self.scheduler, request) is not None
        return lease.until <= self.now() + STEP_SECONDS and not is_next_turn

    def _check_ended(self, request: str) -> None:
        """Its lease is held now; or it left nothing, or less than its session has in a tier: then that stays, as it
        does if a step failed."""
        for name in [name for name, one in self.booked.items() if one == request]:
            del self.booked[name]
            lease, left = self.held.get(name), self._cached(request)
            is_more = lease is not None and (left < lease.tokens or self.is_failing) and name in self.away.of
            if lease is None or (left and not is_more):
                raise Violation(f"request {request} was granted lease {name} and has ended, and it is not held")

    def _cached(self, name: str) -> int:
        """The most tokens that a request of the same prompt would find."""
        request = self.requests[name]
        self._own[name] = request.prompt
        found = next(self.prefixes.boundaries(request, len(request.prompt) - 1), None)
        return 0 if found is None else found.tokens

    def _hold(self, event: LeaseHeld) -> None:
        name = event.lease
        if name in self.booked:
            request = self.requests[self.booked.pop(name)]
            assert request.retain is not None
            owner, scope, seconds = request.tenant, request.scope, request.retain.seconds
            tokens = self.scripts[request.name].tokens
            is_named = request.retain.session == name
            if name in self.held and not is_named and name not in self.begun_by(request, tokens):
                raise Violation(f"request {request.name} moves lease {name}, whose tokens it does not continue")
            if name in self.begun_by(request, request.prompt) and event.tokens < self.held[name].tokens:
                raise Violation(f"lease {name} moves back to {event.tokens} tokens of those that it had")
        else:
            owner, scope, asked, seconds = self.asked.pop(name)
            tokens = asked.astype(np.int64)
        if event.tokens > len(tokens):
            raise Violation(f"lease {name} holds {event.tokens} tokens, {len(tokens)} were asked for")
        own = np.concatenate([tokens[: event.tokens], [0]]).astype(np.int32)
        key = f"lease {name} {len(self._own)}"
        self._own[key] = own
        probe = Request(key, own, 1, scope=scope, tenant=owner)
        self.held[name] = Promised(probe, event.tokens, self.now() + seconds)
        self.away.of.pop(name, None)

    # ── what must hold ────────────────────────────────────────────────────

    def _check_hit(self, event: RequestAdmitted) -> None:
        request, tokens = self.requests[event.request], self.scripts[event.request].tokens[: event.tokens]
        if request.sampling.prompt_logprobs is not None and event.tokens == len(request.prompt):
            return  # it computes its prompt once; after its first output it continues a lease as others do
        for name in self.begun_by(request, tokens):
            if event.hit_tokens < self.held[name].tokens and name in self.away.of:
                self.away.note_less(event.request, name)
            elif event.hit_tokens < self.held[name].tokens:
                raise Violation(
                    f"request {event.request} begins with the {self.held[name].tokens} tokens of lease {name}, and "
                    f"starts after {event.hit_tokens}"
                )

    def begun_by(self, request: Request, tokens: Ints | Tokens) -> list[str]:
        """Leases whose tokens these begin with, and which would be a hit."""
        return [
            name
            for name, one in self.held.items()
            if one.request.scope == request.scope
            and one.tokens < len(tokens)
            and np.array_equal(one.request.prompt[: one.tokens], tokens[: one.tokens])
        ]

    def _check_waits(self, name: str) -> None:
        """It begins with a lease, which is in the pool, or in a tier that it may still ask."""
        tokens = self.scripts[name].tokens[: state.known_tokens(self.scheduler, name)]
        leases = self.begun_by(self.requests[name], tokens)
        if not any(lease not in self.away.of or not self._has_failed(name) for lease in leases):
            raise Violation(f"request {name} waits for room to continue a lease, and of {leases} it can continue none")

    def after_turn(self) -> None:
        self._check_times()
        self.away.check()
        self._check_room()

    def _check_room(self) -> None:
        boundaries, booked = self._boundaries(), {name: self._longest(one) for name, one in self.booked.items()}
        self.room.check_memory(list(boundaries.values()), list(booked.values()))
        held = {name: (one.request.tenant, boundaries.get(name)) for name, one in self.held.items()}
        self.room.check_quotas(held, booked)

    def sheets(self) -> list[int]:
        """By stage: whole sheets for the pages that all held leases need, each once."""
        return self.room.sheets(list(self._boundaries().values()), [])

    def _boundaries(self) -> dict[str, Boundary]:
        return {name: self._boundary(name, one) for name, one in self.held.items() if name not in self.away.of}

    def _longest(self, name: str) -> Request:
        """All tokens that a request may come to have, for what its lease will take."""
        request, key = self.requests[name], f"booked {name}"
        own = self._own[key] = self.scripts[name].tokens[: request.limit - 1].astype(np.int32)
        return Request(key, own, request.limit - len(own), scope=request.scope, tenant=request.tenant)

    def _boundary(self, name: str, one: Promised) -> Boundary:
        boundary = self.prefixes.boundary(one.request, one.tokens)
        if boundary is None or not self.prefixes.is_proved(boundary):
            raise Violation(f"lease {name} is held, and no request can start after its {one.tokens} tokens")
        return boundary

    def _check_times(self) -> None:
        held = sorted(state.held_leases(self.scheduler))
        if held != sorted(self.held):
            raise Violation(f"leases {held} are held, each in one place, by what was reported {sorted(self.held)}")
        for name, one in self.held.items():
            if one.until < self.now() and name not in self.booked:
                raise Violation(f"lease {name} is held at {self.now()}, and was to end at {one.until:g}")

    def at_end(self) -> None:
        for name in list(self.held):
            self.releasing = name
            self.scheduler.leasing.release(name)
        for what, count in state.books_of_leases(self.scheduler):
            if count:
                raise Violation(f"after the last lease {count} {what} are left")


def with_quotas(arrivals: list[Arrival], quotas: Quotas) -> list[Arrival]:
    """Leases of requests count for the quotas of their tenants."""
    return [_within(arrival, quotas.get(arrival.request.tenant)) for arrival in arrivals]


def _within(arrival: Arrival, quota: int | None) -> Arrival:
    request = arrival.request
    retain = None if request.retain is None else replace(request.retain, quota_bytes=quota)
    return replace(arrival, request=replace(request, retain=retain))


def with_leases(random: Random, arrivals: list[Arrival], rate: float | None = None) -> list[Arrival]:
    """Some of them ask for a lease of what they leave, a few for one of a named session."""
    rate = random.choice(RETAIN_RATES) if rate is None else rate
    return [_asking(random, arrival) if random.random() < rate else arrival for arrival in arrivals]


def _asking(random: Random, arrival: Arrival) -> Arrival:
    session = random.choice(("", "", "", f"session {random.randint(0, 2)}"))
    retain = Retain(random.choice((0.5, 4.5, 15.5, 60.5)), session)
    return replace(arrival, request=replace(arrival.request, retain=retain))


def leased_tokens(scheduler: Scheduler, request: Request) -> int:
    """The most tokens of a lease that a request's prompt begins with, and could continue from."""
    root, index = scheduler.reuse.root_of(request.scope), scheduler.reuse.index
    own = keys_of(root, request.prompt, index.unit)
    chain = index.nodes.follow(own, len(own))
    most = [
        one.tokens
        for one in index.leases.held.values()
        if one.tokens < len(request.prompt) and scheduler.leasing._begins(request.prompt, [root, *own], chain, one)
    ]
    return max(most, default=0)


def broken_leases(scheduler: Scheduler) -> list[str]:
    """Held leases whose end is not in the index, or lacks what a hit there needs."""
    index = scheduler.reuse.index
    nodes = index.nodes

    def is_there(chain: Ints) -> bool:
        return bool(nodes.is_there[chain].all() and index.coverage.usable(chain, nodes.tokens[chain])[-1])

    return [name for name, one in index.leases.held.items() if not is_there(one.chain)]
