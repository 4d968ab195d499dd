"""Recounts all pages and holders from the tables up. An error names the page, the kind and the request.

It is slow: no counter is trusted, everything is counted again. It may run after every step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quire.cache.memory import StageMemory
from quire.cache.pool import Holder
from quire.core.errors import QuireError


class BooksDoNotBalance(QuireError):
    """A page leaked or was allocated twice: always a bug in Quire."""


def audit(memory: StageMemory, requests: Mapping[int, str]) -> None:
    """`requests`: the rows that may hold pages, and the names of their requests."""
    for index, table in enumerate(memory.tables):
        _audit_holders(memory, index, requests)
        rows = np.flatnonzero(table.end > 0)
        strays = [int(row) for row in rows if int(row) not in requests]
        if strays:
            raise BooksDoNotBalance(f"{table.plan.name}: row {strays[0]} holds pages, but no request has that row")
    _audit_sheets(memory)


def _audit_holders(memory: StageMemory, index: int, requests: Mapping[int, str]) -> None:
    table, shelf = memory.tables[index], memory.pool.shelves[index]
    counted = np.zeros(len(shelf.holders), dtype=np.int64)
    last: dict[int, str] = {}
    for row, name in requests.items():
        pages = table.held(row)
        if len(np.unique(pages)) != len(pages):
            raise BooksDoNotBalance(f"{table.plan.name}: request {name} holds a page twice")
        counted[pages] += 1
        last.update(dict.fromkeys(pages.tolist(), name))
    if memory.kept:
        _audit_cache(memory, index)
    wrong = np.flatnonzero(counted != shelf.count(Holder.REQUEST))
    if len(wrong):
        page = int(wrong[0])
        raise BooksDoNotBalance(
            f"{table.plan.name}: page {page} is held by {counted[page]} requests, the last of them "
            f"{last.get(page, 'none')}; the books say {shelf.count(Holder.REQUEST)[page]}"
        )


def _audit_cache(memory: StageMemory, index: int) -> None:
    shelf, kept = memory.pool.shelves[index], memory.kept[index]
    counted = np.bincount(kept.pages[kept.present].ravel(), minlength=len(shelf.holders))
    wrong = np.flatnonzero(counted != shelf.count(Holder.CACHE))
    if len(wrong):
        page = int(wrong[0])
        raise BooksDoNotBalance(
            f"{memory.tables[index].plan.name}: page {page} is cached {counted[page]} times, "
            f"the books say {shelf.count(Holder.CACHE)[page]}"
        )


def _audit_sheets(memory: StageMemory) -> None:
    pool = memory.pool
    for index, (shelf, plan) in enumerate(zip(pool.shelves, memory.stage.kinds, strict=True)):
        used = shelf.in_use().reshape(-1, shelf.pages_per_sheet)
        in_sheet = used.sum(axis=1)
        owned = pool.owner == index
        if (shelf.holders < 0).any():
            raise BooksDoNotBalance(f"{plan.name}: a page has fewer than no holders")
        if (in_sheet != shelf.used_in_sheet).any():
            sheet = int(np.flatnonzero(in_sheet != shelf.used_in_sheet)[0])
            raise BooksDoNotBalance(
                f"{plan.name}: sheet {sheet} has {in_sheet[sheet]} pages in use, "
                f"the books say {shelf.used_in_sheet[sheet]}"
            )
        if ((in_sheet > 0) != owned).any():
            sheet = int(np.flatnonzero((in_sheet > 0) != owned)[0])
            raise BooksDoNotBalance(f"{plan.name}: sheet {sheet} is owned without need or used without owner")
        free = np.sort(shelf.free_list())
        expected = np.flatnonzero((~used & owned[:, None]).ravel())
        if not np.array_equal(free, expected):
            raise BooksDoNotBalance(f"{plan.name}: {len(free)} pages are listed as free, {len(expected)} are")
        held = shelf.count(Holder.REQUEST)
        shared = int(np.maximum(held - 1, 0).sum())
        if shared != shelf.shared:
            raise BooksDoNotBalance(f"{plan.name}: requests share {shared} pages, the books say {shelf.shared}")
    free_sheets = int((pool.owner == pool.no_owner).sum())
    if free_sheets != pool.free_sheets:
        raise BooksDoNotBalance(f"{free_sheets} sheets are free, the books say {pool.free_sheets}")
