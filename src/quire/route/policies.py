"""Policies to compare a router with."""

from __future__ import annotations

import hashlib

from quire.route.policy import Asker


class AnyReplica:
    """There is one replica."""

    def choose(self, session: str, now: float, replicas: Asker) -> int:
        del session, now, replicas
        return 0


class RoundRobin:
    def __init__(self) -> None:
        self._next = 0

    def choose(self, session: str, now: float, replicas: Asker) -> int:
        self._next += 1
        return (self._next - 1) % replicas.replicas


class LeastBusy:
    """The replica with the fewest requests that run or wait."""

    def choose(self, session: str, now: float, replicas: Asker) -> int:
        rooms = replicas.rooms()
        return min(range(len(rooms)), key=lambda one: rooms[one].running + rooms[one].waiting)


class BySession:
    """All requests of a session go to one replica; new sessions take turns."""

    def __init__(self) -> None:
        self._home: dict[str, int] = {}

    def choose(self, session: str, now: float, replicas: Asker) -> int:
        return self._home.setdefault(session, len(self._home) % replicas.replicas)


class BySessionHash:
    """All requests of a session go to one replica, which its name determines."""

    def choose(self, session: str, now: float, replicas: Asker) -> int:
        return int.from_bytes(hashlib.sha256(session.encode()).digest()[:8], "little") % replicas.replicas


class MostReused:
    """The replica that would reuse most of the prompt."""

    def choose(self, session: str, now: float, replicas: Asker) -> int:
        rooms = replicas.rooms()
        return max(range(len(rooms)), key=lambda one: rooms[one].reused_tokens)


class LeastToDo:
    """The replica with the fewest tokens to compute before the request's first one, and `request_tokens` for each
    request that is there."""

    def __init__(self, request_tokens: float = 64) -> None:
        self.request_tokens = request_tokens

    def choose(self, session: str, now: float, replicas: Asker) -> int:
        rooms = replicas.rooms()

        def work(place: int) -> float:
            room = rooms[place]
            own = room.prompt_tokens - room.reused_tokens
            return own + room.tokens_ahead + self.request_tokens * (room.running + room.waiting)

        return min(range(len(rooms)), key=work)
