"""Stores to a tier: what the prefix index keeps and the tier lacks, when a row leaves or keeps a boundary.

    index keeps a chain ──▶ the tier accepts records ──▶ the next step copies their pages to the tier's memory

A store runs in order with the copies of its step, before the step computes. So its pages are read before anything can
overwrite them, and no page is held for it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from quire.core.events import Publisher, RecordsStored
from quire.core.reasons import WayBack
from quire.core.step import Ints, Step
from quire.core.tier import Place, RecordStore
from quire.kinds import Keeps
from quire.plan.plan import Plan
from quire.plan.records import Records, Span, boundary_name, mark_name, size_bytes, unit_name
from quire.prefix.index import PrefixIndex
from quire.prefix.nodes import Chain
from quire.scheduler.next_step import Clear, NextStep

Record = tuple[Place, tuple[Clear, ...]]
"""Where a record goes, and the pages that it is copied from."""


class Stores:
    """Offers what the prefix index keeps to a tier, record by record."""

    def __init__(
        self, keeper: RecordStore | None, plan: Plan, index: PrefixIndex, next_step: NextStep, publisher: Publisher
    ) -> None:
        self.keeper = None if index.disabled else keeper
        self.records = Records(plan)
        self._index = index
        self._next_step, self._publisher = next_step, publisher

    def offer(self, chain: Chain) -> None:
        """Offers these nodes, which the index keeps: the tier accepts the units and boundaries that it lacks."""
        if self.keeper is None or not len(chain):
            return
        keys = self._index.nodes.key[chain].tolist()
        taken: list[Record] = []
        if self.records.has_boundaries:
            places = self._boundaries(chain)
            names = [boundary_name(keys[place]) for place in places]
            for place in self.keeper.renew(names):
                own = chain[: places[place] + 1]
                self._take(names[place], self.records.at(int(self._index.nodes.tokens[own[-1]])), own, taken)
            if not self.records.has_units:
                self._mark_ends(chain, places, keys, taken)
        if self.records.has_units:
            units = int(self._index.nodes.tokens[chain[-1]]) // self._index.unit
            names = [unit_name(key) for key in keys[:units]]
            for unit in self.keeper.renew(names):
                if not self._take(names[unit], self.records.in_unit(unit), chain, taken):
                    break
        if taken:
            self._next_step.store(taken[::-1])  # a chain's beginning comes last, and so is the last to be evicted
            self._publisher.publish(RecordsStored(self._publisher.step, len(taken)))

    def _mark_ends(self, chain: Chain, places: list[int], keys: list[bytes], taken: list[Record]) -> None:
        """Marks units that an end follows before the next unit: if no kind grows, no unit record leads to the end."""
        ends = [place for place in places if place and self._index.nodes.tokens[chain[place]] % self._index.unit]
        names = [mark_name(keys[place - 1]) for place in ends]
        for place in self.keeper.renew(names) if self.keeper is not None else ():
            self._take(names[place], [], chain, taken)

    def size_of(self, tokens: int) -> int:
        """The most bytes that all records of a prefix of `tokens` tokens take."""
        return self.records.most_prefix_bytes(tokens)

    def way_back(self, tokens: int, compute_seconds: float | None) -> WayBack | None:
        """The cheaper way for a request with `tokens` computed tokens to get them back; None: there is no tier."""
        if self.keeper is None:
            return None
        size = self.records.prefix_bytes(tokens)
        return WayBack(tokens, size, self.keeper.seconds_to_load(size), compute_seconds)

    def give_up(self, steps: Iterable[Step]) -> None:
        """Gives up the stores of steps that failed, and those of the next step: these may depend on copies that were
        not made."""
        for store in (*(store for step in steps for store in step.stores), *self._next_step.give_up_stores()):
            assert self.keeper is not None
            self.keeper.give_up(store.place.number)

    def _boundaries(self, chain: Chain) -> list[int]:
        """Places in the chain after which every kind could continue."""
        nodes = self._index.nodes
        marked = nodes.is_boundary[chain] & self._index.coverage.usable(chain, nodes.tokens[chain])
        return [int(place) for place in marked.nonzero()[0]]

    def _take(self, name: bytes, spans: list[Span], chain: Chain, taken: list[Record]) -> bool:
        assert self.keeper is not None
        place = self.keeper.accept(name, size_bytes(spans))
        if place is None:
            return False
        pages = tuple((span.stage, span.kind, self._pages(span, chain)) for span in spans)
        taken.append((place, pages))
        return True

    def _pages(self, span: Span, chain: Chain) -> Ints:
        """Where the index keeps a span's pages: group after group for each of them."""
        kept = self._index.memories[span.stage].kept[span.kind]
        each = kept.each
        nodes = chain[-1:] if span.plan.kind.keeps is Keeps.STATE else chain[span.logical // each]
        assert kept.present[nodes, span.logical % each].all(), "the index keeps what it offers"
        return np.asarray(kept.pages[nodes, span.logical % each].ravel(), dtype=np.int64)
