"""What the next step contains in addition to its tokens, collected until the step is launched.

copies, stores    in one order: a store reads its pages after the copies that were added before it
loads             after the copies: bytes that a tier staged are copied into the pages of its row
newcomers         rows that belong to another request since the last step
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.cache.memory import StageMemory
from quire.core.step import Capture, Ints, Step
from quire.core.tier import Place, Store
from quire.scheduler.queue import Ticket

Clear = tuple[int, int, Ints]
"""stage, kind, pages"""


class NextStep:
    """Collects copies, stores, loads and newcomers, and becomes the `Step`."""

    def __init__(self, memories: Sequence[StageMemory]) -> None:
        self._tables = tuple(tuple(table.view for table in memory.tables) for memory in memories)
        self._copies: list[tuple[int, int, Ints, Ints]] = []
        self._stores: list[Store] = []
        self._loads: list[tuple[int, int]] = []
        self._newcomers: dict[int, Ticket] = {}

    @property
    def has_stores(self) -> bool:
        return bool(self._stores)

    @property
    def has_loads(self) -> bool:
        return bool(self._loads)

    def copy(self, stage: int, kind: int, source: Ints, target: Ints) -> None:
        self._copies.append((stage, kind, source, target))

    def store(self, records: Sequence[tuple[Place, tuple[Clear, ...]]]) -> None:
        """Stores pages to a tier, as they are after the copies so far."""
        self._stores += [Store(place, pages, len(self._copies)) for place, pages in records]

    def load(self, number: int, row: int) -> None:
        """A load is staged: its bytes are copied into the row's pages."""
        self._loads.append((number, row))

    def enter(self, row: int, ticket: Ticket) -> None:
        self._newcomers[row] = ticket

    def leave(self, row: int) -> list[int]:
        """The row is given up; returns the loads that were staged for it."""
        self._newcomers.pop(row, None)
        staged = [number for number, own in self._loads if own == row]
        if staged:
            self._loads = [one for one in self._loads if one[1] != row]
        return staged

    def give_up_stores(self) -> list[Store]:
        stores, self._stores = self._stores, []
        return stores

    def launch(
        self,
        number: int,
        *,
        rows: Ints,
        starts: Ints,
        counts: Ints,
        samples: npt.NDArray[np.bool_],
        epochs: Ints,
        token_ids: npt.NDArray[np.int32],
        clears: tuple[Clear, ...],
        drafts: Ints | None,
        captures: tuple[Capture, ...],
    ) -> Step:
        """The step in which rows compute these tokens; later additions belong to the step after it."""
        entered = tuple((row, one.request, one.outputs) for row, one in self._newcomers.items())
        copies, loads, stores = tuple(self._copies), tuple(self._loads), tuple(self._stores)
        self._copies, self._stores, self._loads, self._newcomers = [], [], [], {}
        return Step(
            number,
            rows,
            starts,
            counts,
            samples,
            epochs,
            token_ids,
            entered,
            self._tables,
            copies,
            loads,
            clears,
            drafts,
            stores,
            captures,
        )
