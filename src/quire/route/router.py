"""The router: least work first, counted in tokens to compute, with a memory of sessions.

    work there = what it does not reuse of this prompt
               + what is ahead of it there
               + 256 for each request that runs or waits there
               + 2,000 for each other session that lives there, if this is the first request of a session

Asking alone goes wrong twice. A prompt that begins like all others finds its beginning where the first one went, so all
sessions gather there and evict one another; the last line spreads them, at the price of one copy of the beginning per
replica. And a first request is small, so a replica with many sessions at rest looks idle. Later requests find what
their session left behind, and leave it only if the wait is longer than computing it again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from quire.explain.room import Room
from quire.route.policy import Arrival


@dataclass(frozen=True, slots=True)
class Weights:
    """What counts as work, in tokens."""

    request_tokens: int = 256
    """A request there: it shares each step with this one."""
    session_tokens: int = 2000
    """A session that lives there, when a new one is placed: what it is likely to compute later."""
    session_seconds: float = 60.0
    """A session lives where its latest request went, this long after it."""


@dataclass(frozen=True, slots=True)
class _Stay:
    replica: int
    since: float


class Router:
    """Remembers where sessions live. A request without a session is placed by its prompt alone."""

    def __init__(self, weights: Weights | None = None) -> None:
        self.weights = weights or Weights()
        self._stays: OrderedDict[str, _Stay] = OrderedDict()
        """By session, the one that was silent for longest first."""
        self._living: Counter[int] = Counter()
        """Sessions by replica."""

    def choose(self, arrival: Arrival) -> int:
        self._forget(arrival.seconds)
        session, rooms = arrival.session, arrival.rooms()
        is_first = bool(session) and session not in self._stays
        chosen = min(_open(rooms), key=lambda place: self._rank(place, rooms[place], is_first))
        if session:
            self._move(session, _Stay(chosen, arrival.seconds))
        return chosen

    def work(self, place: int, room: Room, is_first: bool) -> int:
        """Tokens, of which those that this replica computes before it generates are the greater part."""
        own = room.prompt_tokens - room.reused_tokens
        others = self.weights.request_tokens * (room.running + room.waiting)
        sessions = self.weights.session_tokens * self._living[place] if is_first else 0
        return own + room.tokens_ahead + others + sessions

    def _rank(self, place: int, room: Room, is_first: bool) -> tuple[int, int]:
        """Of equals, the one where it starts first at the latest."""
        return self.work(place, room, is_first), room.most_steps

    def _move(self, session: str, stay: _Stay) -> None:
        self._leave(session)
        self._stays[session] = stay
        self._living[stay.replica] += 1

    def _leave(self, session: str) -> None:
        stay = self._stays.pop(session, None)
        if stay is not None:
            self._living[stay.replica] -= 1

    def _forget(self, now: float) -> None:
        """Sessions that have been silent for long live nowhere."""
        while self._stays:
            session, stay = next(iter(self._stays.items()))
            if now - stay.since < self.weights.session_seconds:
                break
            self._leave(session)


def _open(rooms: Sequence[Room]) -> list[int]:
    """Replicas where the request fits and the queue has room; without any, those where it fits; else all."""
    places = list(range(len(rooms)))
    fitting = [place for place in places if rooms[place].fits]
    free = [place for place in fitting if not rooms[place].is_queue_full]
    return free or fitting or places
