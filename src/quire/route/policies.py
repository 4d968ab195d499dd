"""Policies by name: the router, and those to compare it with."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from quire.route.policy import Arrival, Policy
from quire.route.router import Router

REQUEST_TOKENS = 64


class AnyReplica:
    """There is one replica."""

    def choose(self, arrival: Arrival) -> int:
        del arrival
        return 0


class RoundRobin:
    def __init__(self) -> None:
        self._next = 0

    def choose(self, arrival: Arrival) -> int:
        self._next += 1
        return (self._next - 1) % arrival.replicas


class LeastBusy:
    """The replica with the fewest requests that run or wait."""

    def choose(self, arrival: Arrival) -> int:
        rooms = arrival.rooms()
        return min(range(len(rooms)), key=lambda one: rooms[one].running + rooms[one].waiting)


class BySession:
    """All requests of a session go to one replica; new sessions take turns."""

    def __init__(self) -> None:
        self._home: dict[str, int] = {}

    def choose(self, arrival: Arrival) -> int:
        return self._home.setdefault(arrival.session, len(self._home) % arrival.replicas)


class MostReused:
    """The replica that would reuse most of the prompt."""

    def choose(self, arrival: Arrival) -> int:
        rooms = arrival.rooms()
        return max(range(len(rooms)), key=lambda one: rooms[one].reused_tokens)


class LeastToDo:
    """The replica with the fewest tokens to compute before the request's first one, and some for each request."""

    def choose(self, arrival: Arrival) -> int:
        rooms = arrival.rooms()

        def work(place: int) -> float:
            room = rooms[place]
            own = room.prompt_tokens - room.reused_tokens
            return own + room.tokens_ahead + REQUEST_TOKENS * (room.running + room.waiting)

        return min(range(len(rooms)), key=work)


POLICIES: MappingProxyType[str, Callable[[], Policy]] = MappingProxyType(
    {
        "ask": Router,
        "round-robin": RoundRobin,
        "session": BySession,
        "least-busy": LeastBusy,
        "most-reused": MostReused,
        "least-to-do": LeastToDo,
    }
)
