"""Quire's router among replicas that come and go: each has a place while it is there, newcomers take free ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from quire.explain.room import Room
from quire.route.policy import Arrival
from quire.route.router import Router

NO_ROOM = Room(fits=False, is_queue_full=True, prompt_tokens=0)
"""Of a replica that does not answer, or is not there."""


class Placing:
    def __init__(self, router: Router | None = None) -> None:
        self._router = router or Router()
        self._places: list[str] = []

    def choose(
        self, session: str, rooms: Mapping[str, Room | None], calls: Mapping[str, int], now: float
    ) -> str | None:
        """The name of a replica. `rooms`: what each replica answers, None without an answer; `calls`: those that each
        was given. None: no replica says that the call fits, so any may refuse it."""
        self._seat(list(rooms))
        seen = [_seen(rooms.get(name), calls.get(name, 0)) for name in self._places]
        if not any(room.fits for room in seen):
            return None
        return self._places[self._router.choose(Arrival(session, now, len(seen), lambda: seen))]

    def _seat(self, names: list[str]) -> None:
        newcomers = [name for name in names if name not in self._places]
        for place, name in enumerate(self._places):
            if name not in names and newcomers:
                self._places[place] = newcomers.pop()
        self._places += newcomers


def most_reused(rooms: Mapping[str, Room | None]) -> str | None:
    """The replica that has most of the prompt."""
    found = {name: room.reused_tokens for name, room in rooms.items() if room is not None}
    return max(found, key=lambda name: found[name]) if found else None


def _seen(room: Room | None, calls: int) -> Room:
    """Calls that a replica has been given and does not report yet count as requests that wait there."""
    if room is None:
        return NO_ROOM
    return replace(room, waiting=max(room.waiting, calls - room.running))
