"""Host memory of a rank that caches prefixes: its own part of each record, in blocks with the numbers of rank 0's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.core.tier import Staged
from quire.ranks.channel import Json
from quire.ranks.stores import FollowedStore


class FollowedMemory:
    """`StagingMemory` of a rank other than 0. Rank 0 decides what is stored and loaded, and says so with each step: in
    the order of steps a record is whole on every rank before it is loaded."""

    def __init__(self, stores: Sequence[FollowedStore] = ()) -> None:
        """`stores`: below it, one at most."""
        self._stores, self._loads = tuple(stores), dict[int, Staged]()

    def follow_order(self, order: Json) -> Json:
        """Of rank 0, about a record in the store. May wait."""
        (store,) = self._stores
        return store.follow(order)

    def expect(self, loads: Sequence[Staged]) -> None:
        """Of the next step."""
        self._loads = {one.load.number: one for one in loads}

    def staged_load(self, number: int) -> Staged:
        return self._loads[number]

    def note_stored(self, number: int) -> None: ...

    def note_landed(self, number: int) -> None: ...

    def follow(self, wait: Callable[[], float], stored: Sequence[int] = (), landed: Sequence[int] = ()) -> None:
        del wait, stored, landed
        raise AssertionError("copies alongside the steps are refused on several ranks")
