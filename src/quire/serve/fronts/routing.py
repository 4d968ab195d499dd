"""In the engine's process: what each front is told of a step.

a step's updates ──▶ one part for each front that has requests among them, pickled here once
                     the hub passes a part on without reading it: a token costs it nothing
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import replace

from quire.serve.messages import EngineTick, RequestUpdate, RoutedTick, Submit


class Router:
    def __init__(self) -> None:
        self._fronts: dict[str, int] = {}
        """By request that has not ended: the front that submitted it."""

    def note(self, submitted: Submit) -> None:
        self._fronts.update({request.name: submitted.front for request in submitted.requests})

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._fronts.pop(name, None)

    def names_of(self, front: int) -> tuple[str, ...]:
        return tuple(name for name, owner in self._fronts.items() if owner == front)

    def routed(self, tick: EngineTick) -> RoutedTick:
        groups: dict[int, list[RequestUpdate]] = {}
        for update in tick.updates:
            front = self._fronts.get(update.name)
            if front is None:
                continue  # it was cancelled, or is another server's
            groups.setdefault(front, []).append(update)
            if update.ending or update.refusal:
                del self._fronts[update.name]
        parts = {front: _part(tick, updates) for front, updates in groups.items()}
        return RoutedTick(replace(tick, updates=()), parts)


def _part(tick: EngineTick, updates: list[RequestUpdate]) -> bytes:
    return pickle.dumps(EngineTick(tick.steps, tick.is_idle, tuple(updates)), pickle.HIGHEST_PROTOCOL)
