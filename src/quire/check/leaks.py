"""Leaks of anything but pages: every owner is asked what it keeps for requests, and that is counted again.

accepted and not ended   ──▶ has a row or waits, in all books of either, and in no other
the last request ended   ──▶ every book of requests is empty
the cache was dropped    ──▶ every book of the prefix index is empty
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from quire.check import state
from quire.check.definitions import Violation
from quire.core.request import Request
from quire.scheduler.scheduler import Scheduler


def check_owners(scheduler: Scheduler, accepted: Mapping[str, Request]) -> None:
    """`accepted`: the requests that have not ended."""
    _check_places(scheduler, accepted)
    _check_rows(scheduler)
    _check_tokens(scheduler)
    _check_tenants(scheduler, accepted.values())
    _check_prompts(scheduler, accepted.values())


def check_no_request_left(scheduler: Scheduler) -> None:
    for what, count in state.books_of_requests(scheduler):
        if count:
            raise Violation(f"after the last request {count} {what} are left")


def check_no_prefix_left(scheduler: Scheduler) -> None:
    for what, count in state.books_of_the_index(scheduler):
        if count:
            raise Violation(f"after dropping the cache {count} {what} are left in the index")


def _check_places(scheduler: Scheduler, accepted: Mapping[str, Request]) -> None:
    """Each request has a row or waits."""
    waiting = set(state.waiting(scheduler))
    for book, names in state.queued(scheduler).items():
        if sorted(names) != sorted(waiting):
            raise Violation(f"the queue's {book} have {len(names)} requests, {len(waiting)} wait")
    for book, own in state.places(scheduler).items():
        if both := own & waiting:
            raise Violation(f"request {min(both)} waits and is among the {book} of running ones")
        if wrong := (own | waiting) ^ set(accepted):
            where = "is nowhere" if min(wrong) in accepted else "has ended and is still there"
            raise Violation(f"request {min(wrong)} {where}, by the {book} of running ones and the queue")


def _check_rows(scheduler: Scheduler) -> None:
    """What is kept by row belongs to rows that have a request; the others are free, once."""
    rows = set(state.running(scheduler).values())
    if sorted([*state.free_rows(scheduler), *rows]) != list(range(scheduler.rows.count)):
        raise Violation(
            f"{len(state.free_rows(scheduler))} rows are free and {len(rows)} taken, of {scheduler.rows.count}"
        )
    for book, own in state.reusing_rows(scheduler).items():
        if own - rows or (book == "chains" and own != rows and not scheduler.reuse.index.disabled):
            raise Violation(f"{book}: kept for rows {sorted(own)}, requests have {sorted(rows)}")
    if stale := [key for key, is_next in state.next_units(scheduler).items() if not is_next]:
        raise Violation(f"{len(stale)} units are waited for, and their rows compute others next")
    loading = state.loading_rows(scheduler)
    if len({frozenset(own) for own in loading.values()}) > 1 or loading["rows"] - rows:
        raise Violation(f"rows wait for loads by one book and not by another: {loading}")
    if lost := set(state.landed_rows(scheduler)) - rows:
        raise Violation(f"row {min(lost)} has no request, and a load is staged for it")


def _check_tokens(scheduler: Scheduler) -> None:
    """Tokens computed, expected and guessed, counted again from the steps in flight."""
    rows = scheduler.rows
    computed, expected, drafts = (np.zeros(rows.count, dtype=np.int64) for _ in range(3))
    for step in scheduler.flying:
        own = rows.epoch[step.rows] == step.epochs
        guessed = np.zeros_like(step.counts) if step.drafts is None else step.drafts
        computed[step.rows[own]] += (step.counts - guessed)[own]
        expected[step.rows[own]] += step.samples[own]
        drafts[step.rows[own]] += guessed[own]
    for name, row in state.running(scheduler).items():
        outputs = int(rows.output_counts[row])
        counted = (
            ("tokens computed", rows.computed[row], rows.settled[row] + computed[row]),
            ("tokens expected", rows.expected[row], rows.known[row] + expected[row]),
            ("drafts", rows.drafts[row], drafts[row]),
            ("tokens", rows.known[row], len(rows.requests[row].prompt) + outputs),
        )
        for what, booked, found in counted:
            if booked != found:
                raise Violation(f"request {name} has {found} {what}, the books say {booked}")


def _check_tenants(scheduler: Scheduler, accepted: Iterable[Request]) -> None:
    here = Counter(request.tenant for request in accepted)
    if state.tenants(scheduler) != here:
        raise Violation(f"the fair shares count {state.tenants(scheduler)} requests by tenant, {dict(here)} are here")


def _check_prompts(scheduler: Scheduler, accepted: Iterable[Request]) -> None:
    """Prompts that others are compared with are those that were accepted and have not ended."""
    if not state.compares_prompts(scheduler):
        return
    unit = scheduler.plan.reuse_unit_tokens
    expected: Counter[tuple[bytes, int]] = Counter()
    for request in accepted:
        if units := len(request.prompt) // unit:
            expected[state.keys(scheduler, request.name)[units - 1], units] += 1
    counted = Counter((own[-1], len(own)) for own in state.compared_prompts(scheduler))
    if counted != expected:
        raise Violation(f"{counted.total()} prompts are compared with others, {expected.total()} were accepted")
