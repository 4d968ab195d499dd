"""Where each layer's bytes are in a page: the manifest that workers, tiers and connectors read.

    page of kind "full", 2 layers, 16 tokens:
    ├─ layer 5 key ──┼─ layer 5 value ─┼─ layer 11 key ─┼─ layer 11 value ─┤ pad to 256 B ┤
      [16, heads, d]    [16, heads, d]

A kind's layers may be cut into equal groups, each with its own pages: group g's page holds slots g, g + groups, ….
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import gcd

from quire.core.units import round_up
from quire.plan.shares import KindShare, Slot

GRANULE_BYTES = 256
"""Tables hold addresses in granules, as signed 32-bit integers."""
ADDRESSABLE_BYTES = (1 << 31) * GRANULE_BYTES
PART_ALIGNMENT = 16
"""Widest vector load of a kernel."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of one layer inside a page of its group."""

    group: int
    layer: int
    purpose: str
    part: str
    dtype: str
    offset_bytes: int
    units: int
    heads: int
    row_bytes: int
    """Strides: one head is row_bytes, one unit (token or state) is heads × row_bytes."""
    model_heads: int
    """Heads of the whole model; `heads_of` says which of them a rank keeps."""

    @property
    def bytes(self) -> int:
        return self.units * self.heads * self.row_bytes

    def heads_of(self, rank: int, ranks: int) -> range:
        """The model's heads that a rank keeps, in order: all if they are replicated, else its share of them; if there
        are fewer heads than ranks, the one that it has a copy of."""
        if self.heads == self.model_heads:
            return range(self.model_heads)
        if self.model_heads < ranks:
            head = rank * self.model_heads // ranks
            return range(head, head + 1)
        short, longer = divmod(self.model_heads, ranks)
        begin = rank * short + min(rank, longer)
        return range(begin, begin + short + (rank < longer))


def possible_groups(share: KindShare) -> tuple[int, ...]:
    """Numbers of groups of equal bytes that the slots can form: each must divide the slots of every geometry."""
    common = gcd(*Counter(_geometry(slot) for slot in share.slots).values())
    return tuple(groups for groups in range(1, common + 1) if common % groups == 0)


def _geometry(slot: Slot) -> tuple[tuple[int, int], ...]:
    return tuple((part.heads, part.row_bytes) for part in slot.parts)


def group_slots(share: KindShare, groups: int) -> list[list[Slot]]:
    """Distributes the slots of each geometry round-robin, so that every group gets the same bytes."""
    dealt: list[list[Slot]] = [[] for _ in range(groups)]
    seen: Counter[tuple[tuple[int, int], ...]] = Counter()
    for slot in share.slots:
        geometry = _geometry(slot)
        dealt[seen[geometry] % groups].append(slot)
        seen[geometry] += 1
    return dealt


def slot_bytes(slot: Slot, units: int) -> int:
    return sum(round_up(units * part.bytes, PART_ALIGNMENT) for part in slot.parts)


def page_bytes(share: KindShare, groups: int, units: int) -> int:
    """Bytes of a page, the same for every group."""
    total = sum(slot_bytes(slot, units) for slot in share.slots)
    return round_up(total // groups, GRANULE_BYTES)


def manifest(share: KindShare, groups: int, units: int) -> tuple[Entry, ...]:
    entries = []
    for group, slots in enumerate(group_slots(share, groups)):
        offset = 0
        for slot in slots:
            for part in slot.parts:
                entries.append(
                    Entry(
                        group,
                        slot.layer,
                        slot.purpose,
                        part.name,
                        part.dtype.value,
                        offset,
                        units,
                        part.heads,
                        part.row_bytes,
                        part.model_heads,
                    )
                )
                offset += round_up(units * part.bytes, PART_ALIGNMENT)
    return tuple(entries)
