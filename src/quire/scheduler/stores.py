"""What goes out to a tier: whatever the prefix index keeps and the tier lacks, when a row leaves or keeps a boundary.

    index keeps a chain ──▶ the tier accepts records ──▶ the next step copies their pages to the tier's memory

A store is done in the order of the copies around it, before the step computes: whatever becomes of its pages
afterwards, it has read them. So no page is held for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from quire.cache.nodes import Chain
from quire.cache.prefix import PrefixIndex
from quire.core.events import Publisher, RecordsStored
from quire.core.reasons import WayBack
from quire.core.step import Ints, Step
from quire.core.tier import Keeper, Store
from quire.plan.plan import Plan
from quire.plan.records import Records, Span, boundary_name, mark_name, size_bytes, unit_name

Copy = tuple[int, int, Ints, Ints]


class Stores:
    def __init__(
        self, keeper: Keeper | None, plan: Plan, index: PrefixIndex, copies: Sequence[Copy], publisher: Publisher
    ) -> None:
        self._keeper = None if index.disabled else keeper
        self._records = Records(plan)
        self._index = index
        self._copies = copies
        """That the next step will do: what is read now comes behind them."""
        self._publisher = publisher
        self.due: list[Store] = []
        """For the next step."""

    def offer(self, chain: Chain) -> None:
        """The index keeps these nodes: the tier takes what it lacks of their units, and of boundaries among them."""
        if self._keeper is None or not len(chain):
            return
        keys = self._index.nodes.key[chain].tolist()
        taken: list[Store] = []
        if self._records.has_boundaries:
            places = self._boundaries(chain)
            names = [boundary_name(keys[place]) for place in places]
            for place in self._keeper.renew(names):
                own = chain[: places[place] + 1]
                self._take(names[place], self._records.at(int(self._index.nodes.tokens[own[-1]])), own, taken)
            if not self._records.has_units:
                self._mark_ends(chain, places, keys, taken)
        if self._records.has_units:
            units = int(self._index.nodes.tokens[chain[-1]]) // self._index.unit
            names = [unit_name(key) for key in keys[:units]]
            for unit in self._keeper.renew(names):
                if not self._take(names[unit], self._records.in_unit(unit), chain, taken):
                    break
        if taken:
            self.due += reversed(taken)  # a chain's beginning comes last, and so is the last to be forgotten
            self._publisher.publish(RecordsStored(self._publisher.step, len(taken)))

    def _mark_ends(self, chain: Chain, places: list[int], keys: list[bytes], taken: list[Store]) -> None:
        """The unit before an end that lies between two of them says so: nothing that grows leads there."""
        ends = [place for place in places if place and self._index.nodes.tokens[chain[place]] % self._index.unit]
        names = [mark_name(keys[place - 1]) for place in ends]
        for place in self._keeper.renew(names) if self._keeper is not None else ():
            self._take(names[place], [], chain, taken)

    def size_of(self, tokens: int) -> int:
        """Bytes of all records of a prefix of so many tokens, at most."""
        return self._records.most_prefix_bytes(tokens)

    def way_back(self, tokens: int, compute_seconds: float | None) -> WayBack | None:
        """How a request with so many tokens computed had best come back; None: there is no tier."""
        if self._keeper is None:
            return None
        size = self._records.prefix_bytes(tokens)
        return WayBack(tokens, size, self._keeper.seconds_to_load(size), compute_seconds)

    def take_due(self) -> tuple[Store, ...]:
        taken = tuple(self.due)
        self.due.clear()
        return taken

    def give_up(self, steps: Iterable[Step]) -> None:
        """Steps do not come back: what they should have copied is not kept, nor what is due, for it may rest on copies
        that they did not make."""
        for store in (*(store for step in steps for store in step.stores), *self.take_due()):
            assert self._keeper is not None
            self._keeper.give_up(store.place.number)

    def _boundaries(self, chain: Chain) -> list[int]:
        """Places in the chain behind which every kind could go on."""
        nodes = self._index.nodes
        marked = nodes.is_boundary[chain] & self._index.coverage.usable(chain, nodes.tokens[chain])
        return [int(place) for place in marked.nonzero()[0]]

    def _take(self, name: bytes, spans: list[Span], chain: Chain, taken: list[Store]) -> bool:
        assert self._keeper is not None
        place = self._keeper.accept(name, size_bytes(spans))
        if place is None:
            return False
        pages = tuple((span.stage, span.kind, self._pages(span, chain)) for span in spans)
        taken.append(Store(place, pages, len(self._copies)))
        return True

    def _pages(self, span: Span, chain: Chain) -> Ints:
        """Where the index keeps a span's pages: group after group for each of them."""
        kept = self._index.memories[span.stage].kept[span.kind]
        each = kept.each
        nodes = chain[span.logical // each] if span.plan.kind.kind != "state" else chain[-1:]
        assert kept.present[nodes, span.logical % each].all(), "the index keeps what it offers"
        return np.asarray(kept.pages[nodes, span.logical % each].ravel(), dtype=np.int64)
