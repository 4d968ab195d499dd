"""What the pages of each kind hold: digests of tokens, written and read where the tables say that they lie.

page    ▓▓▓▓  a digest in each slot, one array per stage and kind
POISON  what was never written, and what another kind wrote over in the same sheet
DRAFT   lookahead that was not accepted: written, never to be read
CLEARED a state nothing was written to yet
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.cache.tables import Table
from quire.check.definitions import Ints, Violation, seen
from quire.kinds import Cross, Kind, State
from quire.plan.layout import GRANULE_BYTES
from quire.plan.plan import StagePlan

POISON, DRAFT, CLEARED = -1, -2, 0
_NAMES = {POISON: "what nobody wrote", DRAFT: "a draft", CLEARED: "a cleared state"}


class KindContents:
    """What the pages of one kind hold on one stage: (page, slot)."""

    def __init__(self, table: Table, stage: StagePlan, longest: int) -> None:
        self.table, self.kind, self.view = table, table.kind, table.view
        self.page_tokens = table.plan.page_tokens
        self.per_sheet = table.plan.pages_per_sheet
        self.sheet_granules = stage.sheet_bytes // GRANULE_BYTES
        self.page_granules = table.plan.page_bytes // GRANULE_BYTES
        self.slots = np.full((stage.sheets * self.per_sheet, self.page_tokens), POISON, dtype=np.int64)
        self.groups = np.arange(table.plan.groups)
        self.columns = table.column(np.arange(longest + 1))
        self.others: list[KindContents] = []
        """Of the same stage: what is written here is no longer theirs."""

    def places(self, rows: Ints, positions: Ints) -> tuple[Ints, Ints]:
        """Where the tables of addresses say that tokens lie: (token, group) → page, slot."""
        logical, slots = np.divmod(positions, self.page_tokens)
        sheet, granule = np.divmod(self.view.addresses[rows, :, self.columns[logical]], self.sheet_granules)
        return sheet.astype(np.int64) * self.per_sheet + granule // self.page_granules, slots[:, None]

    def named(self, digests: Ints) -> Ints:
        """What each group stores for a digest; what stands for no token is the same in all of them."""
        each = digests[:, None]
        return np.asarray(np.where(each > 0, each + self.groups, each))

    def write(self, rows: Ints, positions: Ints, digests: Ints) -> None:
        pages, slots = self.places(rows, positions)
        self.slots[pages, slots] = self.named(digests)
        self.spoil_others(pages)

    def check(self, rows: Ints, positions: Ints, digests: Ints, names: Sequence[str], index: Ints) -> None:
        """That each row's places hold these digests; names[index[i]] is whose they are."""
        found = self.slots[self.places(rows, positions)]
        wrong = np.flatnonzero((found != self.named(digests)).any(axis=1))
        if len(wrong):
            first = int(wrong[0])
            what = _NAMES.get(int(found[first].min()), "the contents of other tokens")
            raise Violation(
                f"{self.table.plan.name}: request {names[int(index[first])]} reads position "
                f"{int(positions[first])} and finds {what}"
            )

    def spoil_others(self, pages: Ints) -> None:
        if self.others:
            sheets = np.unique(pages // self.per_sheet)
            for other in self.others:
                other.slots.reshape(-1, other.per_sheet, other.page_tokens)[sheets] = POISON


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A step, spelled out for every token."""

    names: list[str]
    rows: Ints
    starts: Ints
    ends: Ints
    """Of what is known: drafts come behind."""
    right: Ints
    """Drafts that will come true."""
    ahead: Ints
    digests: Ints
    """(row of the step, position)"""
    own: Ints

    def spread(self, counts: Ints) -> tuple[Ints, Ints]:
        """For each of counts[i] things of row i: i, and its number."""
        index = np.repeat(np.arange(len(counts)), counts)
        return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)


def read_state(kind: KindContents, batch: Batch, positions: Ints) -> None:
    """The state must stand for exactly the tokens before `positions`; before the first one it is cleared."""
    index = np.arange(len(positions))
    before = np.where(positions > 0, batch.digests[index, positions - 1], CLEARED)
    kind.check(batch.rows, np.zeros_like(positions), before, batch.names, index)


def write(kind: KindContents, batch: Batch) -> None:
    if isinstance(kind.kind, Cross):
        index = np.flatnonzero(batch.starts == 0)
        index, place = (
            np.repeat(index, kind.kind.encoder_tokens),
            np.tile(np.arange(kind.kind.encoder_tokens), len(index)),
        )
        kind.write(batch.rows[index], place, batch.own[index])
        return
    ahead, draft = batch.spread(batch.ahead)
    drafted = np.where(draft < batch.right[ahead], batch.digests[ahead, batch.ends[ahead] + draft], DRAFT)
    if isinstance(kind.kind, State):
        kind.write(batch.rows, np.zeros_like(batch.ends), batch.digests[np.arange(len(batch.ends)), batch.ends - 1])
        if kind.kind.rewinds:
            kind.write(batch.rows[ahead], draft + 1, drafted)
        return
    index, place = batch.spread(batch.ends - batch.starts)
    place += batch.starts[index]
    kind.write(batch.rows[index], place, batch.digests[index, place])
    kind.write(batch.rows[ahead], batch.ends[ahead] + draft, drafted)


def _positions(kind: Kind, first: int, end: int) -> Ints:
    runs = [np.arange(*run) for run in seen(kind, first, end)]
    return runs[0] if len(runs) == 1 else np.concatenate(runs)


def read(kind: KindContents, batch: Batch) -> None:
    if isinstance(kind.kind, State):
        read_state(kind, batch, batch.ends)
        return
    if isinstance(kind.kind, Cross):
        index, place = batch.spread(np.full(len(batch.rows), kind.kind.encoder_tokens))
        digests = batch.own[index]
    else:
        ends = (batch.ends + batch.right).tolist()
        parts = [_positions(kind.kind, s, e) for s, e in zip(batch.starts.tolist(), ends, strict=True)]
        place = np.concatenate(parts)
        index = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        digests = batch.digests[index, place]
    kind.check(batch.rows[index], place, digests, batch.names, index)
