"""Where the checker looks into a scheduler. Laws and actors ask here, so that a changed name is one edit.

Only `essence.py`, which must name every attribute that decides anything, and the planted bugs look elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quire.cache.compaction import find_moves, sheets_freed
from quire.cache.memory import StageMemory
from quire.cache.pool import Holder, Pages
from quire.check.definitions import Ints
from quire.core.request import Request
from quire.core.step import Step
from quire.prefix.forecast import Origin
from quire.scheduler.queue import Ticket
from quire.scheduler.scheduler import Scheduler

Flags = npt.NDArray[np.bool_]


# ── requests ──────────────────────────────────────────────────────────────


def running(scheduler: Scheduler) -> dict[str, int]:
    """The row of each request that has one."""
    return dict(scheduler.rows.row_of)


def waiting(scheduler: Scheduler) -> list[str]:
    return [one.request.name for one in scheduler.queue]


def queued_request(scheduler: Scheduler, name: str) -> Request:
    ticket = scheduler.queue.find(name)
    assert ticket is not None, "it was just accepted"
    return ticket.request


def is_evicted_first(scheduler: Scheduler, node: int) -> bool:
    return bool(scheduler.reuse.index.nodes.origin[node] == Origin.BEYOND)


def is_of_no_use(scheduler: Scheduler, node: int) -> bool:
    """Whether nobody has continued from this node, holds a lease of it or waits for it."""
    nodes = scheduler.reuse.index.nodes
    return not (nodes.uses[node] or nodes.children[node] or nodes.leased[node] or nodes.awaited[node])


def keys(scheduler: Scheduler, name: str) -> list[bytes]:
    """Names of a request's whole units, as far as the scheduler has named them; empty: it is not here."""
    one = scheduler.queue.find(name) or scheduler.running.tickets.get(scheduler.rows.row_of.get(name, -1))
    return one.keys if one else []


def known_tokens(scheduler: Scheduler, name: str) -> int:
    """Prompt and outputs so far of a request that is here."""
    row = scheduler.rows.row_of.get(name)
    if row is not None:
        return int(scheduler.rows.known[row])
    one = scheduler.queue.find(name)
    assert one is not None, "it has not ended"
    return len(one.request.prompt) + len(one.outputs)


def point(scheduler: Scheduler, name: str) -> int | None:
    """Tokens after which a running request stops for others to branch off; None: nowhere."""
    point = scheduler.reuse.points.ahead.get(scheduler.rows.row_of.get(name, -1))
    return None if point is None else point.tokens


def found_tokens(scheduler: Scheduler, name: str) -> int:
    """What a waiting request found in the prefix index when it last tried to start."""
    one = scheduler.queue.find(name)
    return one.hit_tokens if one else 0


def admissions(scheduler: Scheduler) -> int:
    return scheduler.queue.admissions


def is_loading(scheduler: Scheduler, row: int) -> bool:
    return bool(scheduler.rows.is_loading[row])


def is_in_flight(scheduler: Scheduler, name: str) -> bool:
    """Whether tokens of a request are scheduled and not settled."""
    row = scheduler.rows.row_of.get(name)
    return row is not None and bool(scheduler.rows.computed[row] > scheduler.rows.settled[row])


def settled_tokens(scheduler: Scheduler, row: int) -> int:
    return int(scheduler.rows.settled[row])


def stops_at(scheduler: Scheduler, row: int) -> int:
    """The most tokens that a row may compute now: all but its last one, or up to where others branch off."""
    return int(scheduler.rows.most[row])


def most_in_flight(scheduler: Scheduler, row: int) -> int:
    """The most tokens of a row that may be in flight."""
    asked = scheduler.rows.requests[row].chunk_tokens
    return min(asked or scheduler.plan.batch_tokens, scheduler.plan.batch_tokens)


def is_current(scheduler: Scheduler, step: Step, entry: int) -> bool:
    """Whether an entry of a step in flight is of the request that its row has now."""
    return bool(scheduler.rows.epoch[step.rows[entry]] == step.epochs[entry])


def flying(scheduler: Scheduler) -> list[Step]:
    """Steps in flight, the oldest first."""
    return list(scheduler.flying)


def landed_rows(scheduler: Scheduler) -> list[int]:
    """Rows whose loads are staged and not in their pages yet."""
    return [row for _, row in scheduler.next_step._loads]


def copies_due(scheduler: Scheduler) -> int:
    return len(scheduler.next_step._copies)


def stores_due(scheduler: Scheduler) -> int:
    return len(scheduler.next_step._stores)


def latest_step(scheduler: Scheduler) -> Step:
    return scheduler.flying[-1]


def typical_output(scheduler: Scheduler) -> float:
    return scheduler.admission.typical_output


def served(scheduler: Scheduler, tenant: str) -> float:
    return scheduler.shares.served(tenant)


# ── what each owner has of requests ───────────────────────────────────────


def places(scheduler: Scheduler) -> dict[str, set[str]]:
    """By book: the requests that have a row."""
    rows, running = scheduler.rows, scheduler.running.tickets
    return {
        "rows": {request.name for request in rows.requests.values()},
        "names of rows": set(rows.row_of),
        "tickets": {ticket.request.name for ticket in running.values()},
        "line": {running[row].request.name for _, row in scheduler.running._line if row in running},
    }


def queued(scheduler: Scheduler) -> dict[str, list[str]]:
    """By book: the requests that wait."""
    queue = scheduler.queue
    books = {"claims": queue._by_claim, "arrivals": queue._by_arrival, "names": list(queue._by_name.values())}
    tenants = getattr(queue, "of_tenant", None)
    if tenants is not None:
        books["tenants"] = [one for own in tenants.values() for one in own]
    return {book: [one.request.name for one in ones] for book, ones in books.items()}


def free_rows(scheduler: Scheduler) -> list[int]:
    return scheduler.rows._free


def tenants(scheduler: Scheduler) -> dict[str, int]:
    """Requests of each tenant that the fair shares count as here."""
    return dict(scheduler.shares._requests)


def reusing_rows(scheduler: Scheduler) -> dict[str, set[int]]:
    """By book of prefix reuse: the rows that it has something of; those of `chains` have all."""
    reuse = scheduler.reuse
    return {
        "chains": set(reuse._chains),
        "boundaries to keep": set(reuse.marks.units),
        "points to keep": set(reuse.marks._points),
        "settled units": set(reuse._settled),
        "units ahead": set(reuse.junctions.ahead),
        "points ahead": set(reuse.points.ahead),
    }


def compared_prompts(scheduler: Scheduler) -> list[tuple[bytes, ...]]:
    """Prompts that were counted in to find where they part; empty where nothing depends on that."""
    return [own for alike in scheduler.reuse.junctions._prompts.values() for own in alike]


def compares_prompts(scheduler: Scheduler) -> bool:
    index = scheduler.reuse.index
    return index.coverage.has_boundaries and not index.disabled


def next_units(scheduler: Scheduler) -> dict[bytes, bool]:
    """Units that a row computes next by one book, and whether it does by the other."""
    junctions = scheduler.reuse.junctions

    def is_next(key: bytes, row: int) -> bool:
        own, done, _ = junctions.ahead.get(row, ((), 0, 0))
        return bool(own) and own[done] == key

    return {key: is_next(key, row) for key, row in junctions._next.items()}


def wanted_units(scheduler: Scheduler) -> set[bytes]:
    """Units after which a request will start, by their names."""
    return set(scheduler.reuse.junctions.wanted)


def loading_rows(scheduler: Scheduler) -> dict[str, set[int]]:
    """By book of loads: the rows that wait for one."""
    loads, rows = scheduler.loads, scheduler.rows
    return {
        "open loads": {row for _, row, _ in loads._open.values()},
        "numbers of loads": set(loads._number_of),
        "rows": {row for row in rows.requests if rows.is_loading[row]},
    }


def books_of_requests(scheduler: Scheduler) -> Iterator[tuple[str, int]]:
    """Everything that is kept for requests: all of it is gone with the last of them."""
    rows = scheduler.rows
    yield from ((f"requests in the {book} of running ones", len(own)) for book, own in places(scheduler).items())
    yield from ((f"requests in the {book} of waiting ones", len(own)) for book, own in queued(scheduler).items())
    yield "rows that are not free", rows.count - len(set(free_rows(scheduler)))
    yield "rows that are free twice", len(free_rows(scheduler)) - len(set(free_rows(scheduler)))
    yield "tenants in the fair shares", len(tenants(scheduler))
    yield from ((f"rows with {book}", len(own)) for book, own in reusing_rows(scheduler).items())
    yield "prompts compared with others", len(compared_prompts(scheduler))
    yield "points that a row stops at", len(scheduler.reuse.points._rows)
    yield "units that a row computes next", len(next_units(scheduler))
    yield from ((f"rows in the {book} of loads", len(own)) for book, own in loading_rows(scheduler).items())
    yield "loads staged for rows", len(scheduler.next_step._loads)
    yield "records due for a tier", len(scheduler.next_step._stores)
    yield "steps in flight", len(scheduler.flying)


# ── the prefix index ──────────────────────────────────────────────────────


class Nodes(NamedTuple):
    """What the index holds: nodes by their keys, and where each ends in tokens."""

    by_key: dict[bytes, int]
    tokens: Ints


def nodes(scheduler: Scheduler) -> Nodes:
    own = scheduler.reuse.index.nodes
    return Nodes(dict(own.items()), own.tokens)


def root(scheduler: Scheduler, scope: str) -> bytes:
    return scheduler.reuse.root_of(scope)


def present(scheduler: Scheduler, stage: int, kind: int) -> Flags:
    """(node, page of its unit): which pages of a kind the index holds."""
    return scheduler.memories[stage].kept[kind].present


def kept_pages(scheduler: Scheduler, stage: int, kind: int) -> Ints:
    """(node, page of its unit, group): where they lie."""
    return scheduler.memories[stage].kept[kind].pages


def books_of_the_index(scheduler: Scheduler) -> Iterator[tuple[str, int]]:
    """What the index keeps: all of it is gone when the cache is dropped."""
    index = scheduler.reuse.index
    yield "nodes", len(index.nodes)
    yield "keys of nodes", len(dict(index.nodes.items()))
    yield "ends of turns", len(index.ends)
    yield "units before ends of turns", len(index._before)
    yield "pages", sum(int(kept.present.sum()) for memory in scheduler.memories for kept in memory.kept)


def watch_starts(
    scheduler: Scheduler, before: Callable[[int, Ticket], None], after: Callable[[int, Ticket], None]
) -> None:
    """Calls `before` and `after` around the moment at which a row starts after what the index has of its tokens."""
    reuse, start = scheduler.reuse, scheduler.reuse.start

    def watched(row: int, ticket: Ticket) -> None:
        before(row, ticket)
        start(row, ticket)
        after(row, ticket)

    reuse.start = watched  # type: ignore[method-assign]


def watch_admission(scheduler: Scheduler, before: Callable[[], None]) -> None:
    """Calls `before` when waiting requests are about to be let in, and it is known what each would find."""
    look_again = scheduler.admission._look_again

    def watched() -> None:
        look_again()
        before()

    scheduler.admission._look_again = watched  # type: ignore[method-assign]


def watch_leaves(scheduler: Scheduler, after: Callable[[int, Request], None]) -> None:
    """Calls `after` when a row has handed over what it computed, and still holds its pages."""
    reuse, leave = scheduler.reuse, scheduler.reuse.leave

    def watched(row: int, ticket: Ticket, keep: bool, to_tier: bool = True) -> None:
        leave(row, ticket, keep, to_tier)
        if keep and not is_loading(scheduler, row):
            after(row, ticket.request)

    reuse.leave = watched  # type: ignore[method-assign]


# ── leases ────────────────────────────────────────────────────────────────


def held_leases(scheduler: Scheduler) -> set[str]:
    return {lease.terms.name for lease in scheduler.leasing.held()}


def leased_tokens(scheduler: Scheduler, name: str) -> int:
    """Of a lease in a tier that a queued request continues."""
    one = scheduler.queue.find(name)
    return one.leased if one else 0


def ends_a_lease(scheduler: Scheduler, node: int) -> bool:
    return bool(scheduler.reuse.index.nodes.lease_ends[node])


def leased_nodes(scheduler: Scheduler) -> set[int]:
    return set(np.flatnonzero(scheduler.reuse.index.nodes.leased).tolist())


def leased_sheets(scheduler: Scheduler) -> list[int]:
    """By stage: what admission leaves to leases that are held."""
    leases = scheduler.reuse.index.leases
    return [leases.sheets(stage) for stage in range(len(scheduler.memories))]


def books_of_leases(scheduler: Scheduler) -> Iterator[tuple[str, int]]:
    """All of it is gone after the last lease."""
    index = scheduler.reuse.index
    yield "leases", len(index.leases.held)
    yield "leases in a tier", len(scheduler.leasing.tier.held)
    yield "leases of requests", len(index.leases.pending)
    yield "leased pages", sum(sum(own) for own in index.leases.pages)
    yield "leased states", index.coverage.leased_states
    for column in ("leased", "lease_ends", "leased_tail"):
        yield f"nodes with {column}", int(np.count_nonzero(getattr(index.nodes, column)))


# ── the pool ──────────────────────────────────────────────────────────────


def can_take(scheduler: Scheduler, stage: int, pages: list[int]) -> bool:
    """Whether a stage has so many free pages of each kind, sheets without an owner included."""
    pool = scheduler.memories[stage].pool
    sheets = 0
    for shelf, count in zip(pool.shelves, pages, strict=True):
        sheets += -(-max(0, count - shelf.free_pages) // shelf.pages_per_sheet)
    return sheets <= pool.free_sheets


def holders(scheduler: Scheduler, stage: int, kind: int, holder: Holder, pages: Pages) -> Ints:
    return scheduler.memories[stage].pool.shelves[kind].count(holder, pages)


def evict(scheduler: Scheduler) -> None:
    """The prefix index evicts everything now that is not leased."""
    scheduler.reuse.catch_up()
    index = scheduler.reuse.index
    if not index.leases.held:
        index.drop()
    while index.evict(1e18, must=True, even_awaited=True).pieces:
        pass


def sheets_to_gain(memory: StageMemory) -> int:
    """How many sheets compaction would free."""
    return sum(sheets_freed(shelf, find_moves(memory, kind)) for kind, shelf in enumerate(memory.pool.shelves))


def can_compact(scheduler: Scheduler) -> bool:
    """Whether a sheet would become free."""
    return any(sheets_to_gain(memory) for memory in scheduler.memories)


def compact(scheduler: Scheduler) -> bool:
    """Compacts now, whatever the cache holds. False: no sheet would become free."""
    return scheduler.room.compact()
