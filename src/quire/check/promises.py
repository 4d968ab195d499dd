"""The promises, each as a check that can fail: books, what a request holds, how it ends, what is left at the end."""

from __future__ import annotations

from quire.cache.audit import audit
from quire.cache.pool import Holder
from quire.cache.tables import Table
from quire.check.definitions import Violation, fixed_pages, is_fixed, pages_read, pages_touched
from quire.check.leaks import check_no_prefix_left, check_no_request_left
from quire.check.scripts import Script
from quire.core.request import Ending, Request
from quire.scheduler.scheduler import Ended, Scheduler


def check_books(scheduler: Scheduler) -> None:
    """Every book is counted again, and every request holds what its tokens need and nothing else."""
    rows = scheduler.rows
    names = {row: request.name for row, request in rows.requests.items()}
    for memory in scheduler.memories:
        audit(memory, names)
        for table in memory.tables:
            for row, request in rows.requests.items():
                settled, computed = int(rows.settled[row]), int(rows.computed[row])
                ahead = min(scheduler.plan.lookahead, request.limit - computed)
                problem = _held_wrongly(table, row, settled, computed - settled, ahead, scheduler.plan.lookahead)
                if problem:
                    raise Violation(
                        f"{table.plan.name}: request {request.name} with {settled} tokens settled and "
                        f"{computed - settled} in flight {problem}"
                    )


def _held_wrongly(table: Table, row: int, settled: int, new: int, ahead: int, most_ahead: int) -> str:
    """Empty: it has live(settled) and what is in flight, at most the next token's and its lookahead's too."""
    first, end, kept = int(table.first[row]), int(table.end[row]), int(table.kept[row])
    if is_fixed(table.kind):
        least = fixed_pages(table.kind, table.plan.page_tokens, 0) if settled + new else 0
        most = fixed_pages(table.kind, table.plan.page_tokens, most_ahead)
        return "" if least <= end <= most else f"holds {end} pages, not {least} to {most}"
    held = ((1 << end) - (1 << first)) | ((1 << kept) - 1)
    size = table.plan.page_tokens
    if missing := pages_read(table.kind, size, settled, new) & ~held:
        return f"lacks {missing.bit_count()} pages that its tokens read, the first of them {_lowest(missing)}"
    if too_many := held & ~pages_touched(table.kind, size, settled, max(1, new), ahead):
        return f"holds {too_many.bit_count()} pages that nothing reads, the first of them {_lowest(too_many)}"
    return ""


def _lowest(pages: int) -> int:
    return (pages & -pages).bit_length() - 1


def check_ended(ended: Ended, script: Script, was_aborted: bool, now: float) -> None:
    """Tokens are those of an undisturbed run, up to where it ended, and it ended for a reason."""
    request, outputs = ended.request, ended.outputs.tolist()
    expected, ending = script.expected(request)
    if outputs != expected[: len(outputs)]:
        place = next(i for i, pair in enumerate(zip(outputs, [*expected, None], strict=False)) if pair[0] != pair[1])
        raise Violation(f"request {request.name} yields {outputs[place]} as output {place}, not what it yields alone")
    if ended.ending in (Ending.LENGTH, Ending.STOP):
        if ended.ending is not ending or len(outputs) != len(expected):
            raise Violation(
                f"request {request.name} ended by {ended.ending.value} after {len(outputs)} outputs, "
                f"not by {ending.value} after {len(expected)}"
            )
    elif ended.ending is Ending.CANCELLED and not was_aborted:
        raise Violation(f"request {request.name} was cancelled by nobody")
    elif ended.ending is Ending.DEADLINE and not is_late(request, now):
        raise Violation(f"request {request.name} ended at {now}, before its deadline {request.deadline}")


def is_late(request: Request, now: float) -> bool:
    return request.deadline is not None and request.deadline <= now


def check_nothing_left(scheduler: Scheduler) -> None:
    """After the last request only the cache holds pages, and no owner anything else; after dropping the cache, only the
    backend does."""
    if not scheduler.is_idle():
        raise Violation("everything ended, and the scheduler is not idle")
    _check_holders(scheduler, (Holder.REQUEST, Holder.PIN), "after the last request")
    check_no_request_left(scheduler)
    check_books(scheduler)
    scheduler.reuse.index.drop()
    check_no_prefix_left(scheduler)
    check_books(scheduler)
    _check_holders(scheduler, (Holder.REQUEST, Holder.CACHE, Holder.PIN), "after dropping the cache")


def _check_holders(scheduler: Scheduler, gone: tuple[Holder, ...], when: str) -> None:
    for memory in scheduler.memories:
        for shelf, plan in zip(memory.pool.shelves, memory.stage.kinds, strict=True):
            for holder in gone:
                if held := int(shelf.count(holder).sum()):
                    raise Violation(f"{plan.name}: {held} pages are held by {holder.name.lower()} {when}")
            reserved = int(shelf.count(Holder.BACKEND).sum())
            if reserved != scheduler.plan.reserved_pages:
                raise Violation(
                    f"{plan.name}: the backend has {reserved} of {scheduler.plan.reserved_pages} pages {when}"
                )
