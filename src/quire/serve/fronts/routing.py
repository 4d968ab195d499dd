"""In the engine's process: the updates of a step that each front gets.

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
        """Requests that were cancelled, or are another server's, are of no front."""
        tokens: dict[int, dict[str, tuple[int, ...]]] = {}
        updates: dict[int, list[RequestUpdate]] = {}
        for name, own in tick.tokens.items():
            if (front := self._fronts.get(name)) is not None:
                tokens.setdefault(front, {})[name] = own
        for update in tick.updates:
            if (front := self._fronts.get(update.name)) is not None:
                updates.setdefault(front, []).append(update)
                if update.ending or update.refusal:
                    del self._fronts[update.name]
        parts = {
            front: EngineTick(tick.steps, tick.is_idle, tokens.get(front, {}), tuple(updates.get(front, ())))
            for front in {*tokens, *updates}
        }
        pickled = {front: pickle.dumps(part, pickle.HIGHEST_PROTOCOL) for front, part in parts.items()}
        return RoutedTick(replace(tick, tokens={}, updates=()), pickled)
