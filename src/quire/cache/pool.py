"""The pool of one stage: sheets that any kind can take and return, pages with typed holders.

    sheet      0        1        2        3                    page = sheet × pages_per_sheet + slot
    owner      full     window   free     full                 (numbered separately for each kind)
               ▓▓▓▓░    ▓▓▓░░░   ·····    ▓░░░░

A page is free or has holders: requests (counted), the cache, a pin while it is read (counted), or the backend itself. A
sheet is free, or belongs to the kind that has at least one page in use there. All operations work on arrays of pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from quire.kinds import counts
from quire.plan.plan import StagePlan

Pages = npt.NDArray[np.int64]


class Holder(IntEnum):
    """Why a page is not free."""

    REQUEST = 0
    CACHE = 1
    PIN = 2
    BACKEND = 3


EVERY = slice(None)
BITS = 16
"""Bits of a page's word for each holder: how often it holds the page."""
ONE = tuple(counts(1 << BITS * holder) for holder in Holder)
SEVERAL = tuple(counts((1 << BITS) - 2 << BITS * holder) for holder in (Holder.REQUEST, Holder.CACHE, Holder.PIN))
"""Bits of a page's word that are set if a holder holds it more than once."""
NO_HOLDER, ONE_PAGE = counts(0), counts(1)
BY_REQUESTS = counts((1 << BITS) - 1 << BITS * Holder.REQUEST)
"""Bits of a page's word that say how many requests hold it."""
NOT_CACHED = ~(((1 << BITS) - 1) << BITS * Holder.CACHE)
"""Mask that removes the cache from a page's word."""


class Shelf:
    """The pages of one kind. Only its pool writes to it."""

    def __init__(self, pages_per_sheet: int, sheets: int) -> None:
        self.pages_per_sheet = pages_per_sheet
        self.holders = np.zeros(sheets * pages_per_sheet, dtype=np.int64)
        """A word for each page; 0: the page is free."""
        self.sheet = np.arange(sheets).repeat(pages_per_sheet)
        """The sheet of each page."""
        self.in_sheet = np.arange(sheets * pages_per_sheet).reshape(sheets, pages_per_sheet)[:, ::-1].copy()
        """Pages of each sheet in the order of pushing them on the free list, so that the first is taken first."""
        self._is_first = (np.arange(sheets * pages_per_sheet) % pages_per_sheet == 0).astype(np.int64)
        """1 for the first page of each sheet, 0 for others."""
        self.used_in_sheet = np.zeros(sheets, dtype=np.int64)
        self._free = np.empty(sheets * pages_per_sheet, dtype=np.int64)
        self.free_pages = 0
        """Free pages in sheets that this kind owns."""
        self.shared = 0
        """Pages that sharing saves: how many more requests would hold if they shared none."""

    def free_list(self) -> Pages:
        return self._free[: self.free_pages]

    def put(self, pages: Pages) -> None:
        self._free[self.free_pages : self.free_pages + len(pages)] = pages
        self.free_pages += len(pages)

    def pop(self, count: int) -> Pages:
        self.free_pages -= count
        return self._free[self.free_pages : self.free_pages + count].copy()

    def replace_free(self, pages: Pages) -> None:
        self._free[: len(pages)] = pages
        self.free_pages = len(pages)

    def take_empty_sheets(self) -> Pages:
        """Returns the sheets with no page in use, and removes their pages from the free list of this kind."""
        free = self.free_list()
        sheets = self.sheet[free]
        used = self.used_in_sheet[sheets]
        empty: Pages = sheets[used < self._is_first[free]]
        self.replace_free(free[used.nonzero()])
        return empty

    def count(self, holder: Holder, pages: Pages | slice = EVERY) -> Pages:
        """How often a holder holds each of these pages."""
        return np.asarray(self.holders[pages] >> BITS * holder & (1 << BITS) - 1, dtype=np.int64)

    def in_use(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.holders != 0, dtype=np.bool_)


class Pool:
    """The allocator of one stage, the same for all its tensor-parallel ranks."""

    def __init__(self, stage: StagePlan, reserved_pages: int = 0) -> None:
        self.stage = stage
        self.shelves = [Shelf(kind.pages_per_sheet, stage.sheets) for kind in stage.kinds]
        self.no_owner = len(self.shelves)
        """Value in `owner` of a sheet that is free."""
        self.owner = np.full(stage.sheets, self.no_owner, dtype=np.int64)
        self._free_sheets = np.arange(stage.sheets - 1, -1, -1, dtype=np.int64)
        self.free_sheets = stage.sheets
        for kind in range(len(self.shelves)) if reserved_pages else ():
            self.take(kind, reserved_pages, Holder.BACKEND)

    def sheets_short(self, needs: Sequence[int]) -> int:
        """How many free sheets are missing to take `needs` pages of each kind now; 0: they can be taken."""
        return max(0, self.sheets_wanted(needs) - self.free_sheets)

    def sheets_wanted(self, needs: Sequence[int]) -> int:
        """How many free sheets `needs` more pages of each kind would take."""
        wanted = 0
        for shelf, need in zip(self.shelves, needs, strict=True):
            wanted -= min(0, shelf.free_pages - need) // shelf.pages_per_sheet
        return wanted

    def take(self, kind: int, count: int, holder: Holder = Holder.REQUEST) -> Pages:
        """Allocates `count` free pages of a kind. The caller has called `sheets_short` before."""
        shelf = self.shelves[kind]
        if count > shelf.free_pages:
            self._open(kind, -(-(count - shelf.free_pages) // shelf.pages_per_sheet))
        pages = shelf.pop(count)
        shelf.holders[pages] = ONE[holder]
        np.add.at(shelf.used_in_sheet, shelf.sheet[pages], ONE_PAGE)
        return pages

    def _open(self, kind: int, sheets: int) -> None:
        assert sheets <= self.free_sheets, "ask sheets_short before taking"
        self.free_sheets -= sheets
        opened = self._free_sheets[self.free_sheets : self.free_sheets + sheets]
        self.owner[opened] = kind
        shelf = self.shelves[kind]
        shelf.put(shelf.in_sheet.take(opened, axis=0).ravel())

    def hold(self, kind: int, pages: Pages, holder: Holder) -> None:
        """Adds a holder to pages that are in use. A page may appear only once."""
        shelf = self.shelves[kind]
        if holder is Holder.REQUEST:
            shelf.shared += int(np.count_nonzero(shelf.holders[pages] & BY_REQUESTS))
        shelf.holders[pages] += ONE[holder]

    def is_shared(self, kind: int, pages: Pages) -> bool:
        """Whether one of these pages, which the cache holds, has holders other than one node and one request."""
        return bool((self.shelves[kind].holders[pages] > ONE[Holder.REQUEST] + ONE[Holder.CACHE]).any())

    def drop_all(self, kind: int, pages: Pages, holder: Holder) -> None:
        """As `drop`, but a page may appear several times: several rows or nodes may drop it at once."""
        shelf = self.shelves[kind]
        if len(pages) and np.count_nonzero(shelf.holders[pages] & SEVERAL[holder]):
            pages, times = np.unique(pages, return_counts=True)
            shelf.holders[pages] -= ONE[holder] * (times - 1)
            shelf.shared -= int(times.sum()) - len(pages) if holder is Holder.REQUEST else 0
        self.drop(kind, pages, holder)

    def drop(self, kind: int, pages: Pages, holder: Holder) -> None:
        """Removes a holder; pages that lose their last holder become free, and so do sheets that become empty.

        A page may appear only once.
        """
        if not len(pages):
            return
        shelf = self.shelves[kind]
        left = shelf.holders[pages] - ONE[holder]
        shelf.holders[pages] = left
        if shelf.shared and holder is Holder.REQUEST:
            shelf.shared -= int(np.count_nonzero(left & BY_REQUESTS))
        freed = pages[left == NO_HOLDER] if np.count_nonzero(left) else pages
        if not len(freed):
            return
        if shelf.pages_per_sheet == 1:  # a sheet is its page
            shelf.used_in_sheet[freed] = 0
            self._close(freed)
            return
        sheets = shelf.sheet[freed]
        np.subtract.at(shelf.used_in_sheet, sheets, ONE_PAGE)
        shelf.put(freed)
        if np.count_nonzero(shelf.used_in_sheet[sheets]) < len(sheets):
            self._close(shelf.take_empty_sheets())

    def move(self, kind: int, source: Pages, target: Pages) -> None:
        """Moves holders from pages in use to free pages of the same kind; sheets that become empty become free."""
        shelf = self.shelves[kind]
        taken = np.isin(shelf.free_list(), target)
        shelf.replace_free(np.concatenate([shelf.free_list()[~taken], source]))
        shelf.holders[target] = shelf.holders[source]
        shelf.holders[source] = 0
        np.add.at(shelf.used_in_sheet, shelf.sheet[target], 1)
        np.subtract.at(shelf.used_in_sheet, shelf.sheet[source], 1)
        self._close(shelf.take_empty_sheets())

    def _close(self, sheets: Pages) -> None:
        self.owner[sheets] = self.no_owner
        self._free_sheets[self.free_sheets : self.free_sheets + len(sheets)] = sheets
        self.free_sheets += len(sheets)
