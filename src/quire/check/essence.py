"""What decides how a scheduler goes on, as one short digest: states with equal digests have equal futures.

Left out, because no decision depends on it:

    which number a row, an arrival, a step, an epoch or a node has    only who came before whom is kept
    contents of rows, table cells and list ends that nobody uses      they are written before they are read
    when something was used                                           only what was used before what is kept
    how much traffic there was, and what was learned of it            here the least recently used is evicted first
    who has waited for how many admissions                            only whether that is too long
    what a drafter was told (here it always guesses)                  it changes nothing
    reasons, hit counts for people, the typical output (held fixed)   nobody asks them when scheduling
    how long steps took (here nobody measures it)                     what was not measured is always brought back
    copies and stores that wait for the next step                     they move bytes, and bytes decide nothing
    numbers of sheets and pages                                       named by first use; see below

Sheets are alike, and so are pages of a sheet; the code breaks ties between equally full sheets by their numbers. Of
states that differ in such names alone one is explored, with the ties as they fall there.

A new attribute of any of these classes must be named here first: `check_known` insists.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from quire.cache.memory import StageMemory
from quire.cache.tables import Table
from quire.check.definitions import Ints, Violation
from quire.prefix.index import PrefixIndex
from quire.scheduler.queue import Ticket
from quire.scheduler.scheduler import Scheduler

KNOWN = {
    "Scheduler": "plan policy memories events rows shares queue next_step reuse room drafts loads running loading "
    "leasing admission _arrivals _least_chunk flying meter",
    "NextStep": "_tables _copies _stores _loads _newcomers",
    "Running": "_rows _reuse _room _loads _next_step tickets _line _order _order_is_stale",
    "Loading": "_loads _rows _running _reuse _room _next_step _publisher _now",
    "Admission": "_plan _queue _rows _running _reuse _room _loading _leasing _publisher typical_output",
    "Expectations": "_index _queued changed",
    "Captures": "_index _memories _publisher _by_row",
    "Room": "plan _lookahead memories rows index cache_is_in_use no_pages _next_step _publisher",
    "Drafts": "disabled _drafter _lookahead _batch_tokens _memories _rows _publisher _told _epochs",
    "Loads": "_tier _seconds _size_of _unit _has_ends _open _number_of _numbers",
    "StepMeter": "_count _tokens _seconds _squares _products",
    "Shares": "_weights _served _requests",
    "StageMemory": "stage pool tables kept _lookahead",
    "Pool": "stage shelves no_owner owner _free_sheets free_sheets",
    "Shelf": "pages_per_sheet holders sheet in_sheet _is_first used_in_sheet _free free_pages shared",
    "Table": "plan kind sink_columns width _ring pages first end kept view on_write _addresses",
    "KeptUnits": "each pages present",
    "Rows": "count prompt known computed settled limit expected drafts next_unit next_capture most chunk is_loading "
    "is_reserved may_draft epoch stops outputs output_counts latest requests row_of _free _step_tokens "
    "microbatches",
    "FairQueue": "bound _by_claim _by_arrival _by_name admissions _cached _by_number _shares of_tenant",
    "Queue": "bound _by_claim _by_arrival _by_name admissions _cached _by_number",
    "Reuse": "memories index rows junctions expectations captures marks points stores _publisher _next_step _layout "
    "beginnings _chains _settled _tickets",
    "Marks": "_index _captures units _points leaves_spares",
    "Stores": "keeper records _index _next_step _publisher",
    "Records": "unit_tokens _kinds _growing _others has_units has_boundaries unit_bytes largest_boundary_bytes "
    "block_bytes",
    "Beginnings": "_unit _root_of _roots",
    "Points": "_index _memories _captures ahead _rows",
    "Junctions": "_prompts _next ahead wanted",
    "PrefixIndex": "memories coverage disabled follower unit nodes boundaries eviction awaited uses spares leases "
    "arrivals ends _before",
    "Leases": "_nodes _boundaries _coverage _eviction _stages takes held pending pages bytes_elsewhere _ended _began",
    "LeasePages": "_nodes _boundaries _coverage _stages leased",
    "Leasing": "_index _leases _publisher now tier _pauses _idle _back _returning",
    "TierLeases": "_nodes _unit _stores keeper _held",
    "Pauses": "_since _usual _usual_of",
    "Awaited": "_nodes _coverage _eviction requests _bytes_of _bytes",
    "Uses": "_nodes _boundaries _coverage _eviction",
    "Spares": "_nodes _boundaries _coverage _eviction _memories",
    "Boundaries": "nodes coverage memories tails groups _groups_made",
    "Eviction": "nodes boundaries coverage memories forecast ghosts now _ranked _held _awaited _computed "
    "was_given_back paths last_rank",
    "Ghosts": "_gone _runs _ends _oldest _units",
    "Coverage": "memories disabled unit growing tails states has_states has_boundaries _growth_bytes boundary_bytes "
    "kinds most_checkpoints _state_bytes _tail_bytes spare_units pool_bytes leased_states",
    "Nodes": "room count _runs run key parent children tokens used line rank is_there _notes _free",
    "Recency": "",
    "Publisher": "step listeners",
}
KNOWN_TICKET = (
    "request arrival claim outputs preemptions root keys hash_state came_from line is_counted awaits cached chain "
    "is_found turn may_load offer again hit_tokens loaded_tokens miss gap is_reported reason lease leased way_back"
)
MOST_PREEMPTIONS = 2
"""Admission does not tell more of them apart."""
MOST_USES = 2
"""Nor does eviction."""


def check_known(owners: list[object]) -> None:
    for owner in owners:
        known = next((KNOWN[own.__name__] for own in type(owner).__mro__ if own.__name__ in KNOWN), "")
        unknown = set(vars(owner)) - set(known.split())
        assert not unknown, f"{type(owner).__name__} has {sorted(unknown)}: say in essence.py what they decide"
    unknown = set(Ticket.__slots__) - set(KNOWN_TICKET.split())
    assert not unknown, f"Ticket has {sorted(unknown)}: say in essence.py what they decide"


class Names:
    """Gives things numbers in the order in which they are met."""

    def __init__(self) -> None:
        self.of: dict[Any, int] = {}

    def __call__(self, thing: Any) -> int:
        return self.of.setdefault(thing, len(self.of))


KEYS = Names()
"""Of all keys ever met: they depend on tokens alone, so a number stays right from state to state."""


def essence(scheduler: Scheduler, beside: tuple[Any, ...] = ()) -> bytes:
    """`beside`: what else decides, outside the scheduler."""
    running = sorted(scheduler.running.tickets, key=lambda row: scheduler.running.tickets[row].arrival)
    place = {row: index for index, row in enumerate(running)}
    parts = (
        beside,
        scheduler.room.cache_is_in_use,
        [_row(scheduler, row) for row in running],
        [(*_waiting(one), scheduler.queue.is_overdue(one)) for one in scheduler.queue],
        _flying(scheduler, place),
        _loads(scheduler, place),
        sorted(scheduler.shares._served.items()),
        _reuse(scheduler, place),
        [_memory(scheduler, memory, running) for memory in scheduler.memories],
    )
    return blake2b(repr(parts).encode(), digest_size=16).digest()


def _row(scheduler: Scheduler, row: int) -> tuple[Any, ...]:
    rows = scheduler.rows
    columns = (rows.known, rows.computed, rows.settled, rows.expected, rows.drafts, rows.next_unit, rows.next_capture)
    numbers = [column.item(row) for column in (*columns, rows.is_loading, rows.is_reserved)]
    reuse = scheduler.reuse
    captured = [one.tokens for one in reuse.captures._by_row.get(row, ())]
    marks, line = reuse.marks, reuse._tickets[row].line if row in reuse._tickets else None
    kept = marks.units.get(row), reuse._settled.get(row), line, marks.leaves_spares.get(row), marks._points.get(row)
    point = reuse.points.ahead.get(row)
    return *_waiting(scheduler.running.tickets[row]), numbers, kept, captured, point and (point.tokens, KEYS(point.key))


def _waiting(one: Ticket) -> tuple[Any, ...]:
    preemptions = min(one.preemptions, MOST_PREEMPTIONS)
    places = [place and KEYS(place.key) for place in (one.came_from, one.awaits)]
    asked = one.may_load, one.offer, one.again, one.lease, one.leased
    return (one.request.name, len(one.outputs), preemptions, len(one.keys), *places, one.cached, len(one.chain), *asked)


def _loads(scheduler: Scheduler, place: dict[int, int]) -> tuple[Any, ...]:
    """Open ones and how much time they have left, and those that the next step will copy."""
    loads = scheduler.loads
    waiting = sorted(
        (place[row], load.tokens, deadline - scheduler.loading._now) for load, row, deadline in loads._open.values()
    )
    return (
        waiting,
        sorted(loads._number_of) == sorted(row for _, row, _ in loads._open.values()),
        [place.get(row) for _, row in scheduler.next_step._loads],
    )


def _flying(scheduler: Scheduler, place: dict[int, int]) -> list[Any]:
    """Steps in flight: for each entry that is not stale, whose it is and what it computes."""
    epochs = scheduler.rows.epoch
    return [
        [
            (place[row], start, count, drafts, samples)
            for row, start, count, drafts, samples, epoch in zip(
                step.rows.tolist(),
                step.starts.tolist(),
                step.counts.tolist(),
                (0 * step.counts if step.drafts is None else step.drafts).tolist(),
                step.samples.tolist(),
                step.epochs.tolist(),
                strict=True,
            )
            if epochs.item(row) == epoch
        ]
        for step in scheduler.flying
    ]


def _reuse(scheduler: Scheduler, place: dict[int, int]) -> tuple[Any, ...]:
    reuse, index = scheduler.reuse, scheduler.reuse.index
    junctions, nodes, eviction = reuse.junctions, index.nodes, index.eviction
    groups = {
        number: group for number, group in index.boundaries.groups.items() if len(index.boundaries.members(number))
    }
    times = sorted({*nodes.used[nodes.is_there].tolist(), *(group.used for group in groups.values())})
    leases, away = index.leases, scheduler.leasing
    return (
        sorted((name, one.tokens) for name, one in away.tier.held.items()),
        sorted((name, len(keys), KEYS(end)) for name, (keys, end) in away._returning.items()),
        sorted((name, KEYS(nodes.key[one.chain[-1]])) for name, one in leases.held.items()),
        sorted((name, one.pages) for name, one in leases.pending.items()),
        sorted([KEYS(key) for key in keys] for alike in junctions._prompts.values() for keys in alike),
        sorted((KEYS(key), place[row]) for key, row in junctions._next.items()),
        sorted(map(KEYS, junctions.wanted)),
        sorted(_node(index, node, times) for _, node in nodes.items()),
        sorted((_members(index, number), times.index(group.used)) for number, group in groups.items()),
        sorted((KEYS(key), [KEYS(nodes.key[end]) for end in ends]) for key, ends in index.ends.items()),
        [place[row] for row in reuse._settled],
        eviction.was_given_back,
        [_named(scheduler, entries) for entries in (eviction._ranked, eviction._held, eviction._awaited)],
        sorted(
            (KEYS(nodes.key[leaf]), len(path)) for leaf, path in eviction.paths.items() if nodes.key[leaf] is not None
        ),
    )


def _node(index: PrefixIndex, node: int, times: list[float]) -> tuple[Any, ...]:
    nodes = index.nodes
    uses = min(nodes.uses.item(node), MOST_USES)
    columns = nodes.origin, nodes.gain, nodes.is_boundary, nodes.needed, nodes.awaited, nodes.leased, nodes.leased_tail
    notes = [column.item(node) for column in columns]
    return KEYS(nodes.key[node]), uses, times.index(nodes.used.item(node)), nodes.children.item(node), *notes


def _members(index: PrefixIndex, number: int) -> list[int]:
    return sorted(KEYS(index.nodes.key[node]) for node in index.boundaries.members(number).tolist())


def _named(scheduler: Scheduler, entries: list[tuple[float, int]]) -> list[Any]:
    """What some entries name. Those out of date name nothing: a node that becomes a leaf gets a new one."""
    index = scheduler.reuse.index
    current = {found for rank, found in entries if index.eviction._is_current(rank, found)}
    return sorted(
        ([KEYS(index.nodes.key[found])] if found >= 0 else [-1, *_members(index, -found)]) for found in current
    )


def check_leaves(scheduler: Scheduler) -> None:
    """Every end of a chain and every boundary that is not leased can be found when something must go; so entries out of
    date decide nothing."""
    index, eviction = scheduler.reuse.index, scheduler.reuse.index.eviction
    named = {
        found
        for rank, found in (*eviction._ranked, *eviction._held, *eviction._awaited)
        if eviction._is_current(rank, found)
    }
    nodes = index.nodes
    ends = {node for node in nodes.leaves().tolist() if not nodes.leased[node]}
    ends |= {node for node in index.boundaries.tails if nodes.children[node] and not nodes.lease_ends[node]}
    if lost := ends - named:
        raise Violation(f"the cache has {len(lost)} ends of chains or boundaries that it can never evict")


def _memory(scheduler: Scheduler, memory: StageMemory, running: list[int]) -> list[Any]:
    """Who holds which pages, sheets and pages named in the order in which they are met."""
    order = sorted(scheduler.reuse.index.nodes.items(), key=lambda item: KEYS(item[0]))
    sheets, parts = Names(), []
    for kind, shelf in enumerate(memory.pool.shelves):
        pages, size = Names(), shelf.pages_per_sheet
        met: list[list[int]] = []
        for row in running:
            met.append(_held(memory.tables[kind], row))
        if memory.kept:
            kept = memory.kept[kind]
            for _, node in order:
                present = kept.present[node].tolist()
                pages_there = zip(kept.pages[node].tolist(), present, strict=True)
                met.append([page for own, is_there in pages_there if is_there for page in own])
                parts.append(present)
        met.append(shelf.free_list().tolist())
        parts.append([[(sheets(page // size), pages(page)) for page in some] for some in met])
        holders = shelf.holders.tolist()
        parts.append(sorted((pages(page), who) for page, who in enumerate(holders) if who))
        parts.append([table_part[running].tolist() for table_part in _bounds(memory.tables[kind])])
    parts.append([sheets(sheet) for sheet in memory.pool._free_sheets[: memory.pool.free_sheets].tolist()])
    return parts


def _bounds(table: Table) -> tuple[Ints, Ints, Ints]:
    return table.first, table.end, table.kept


def _held(table: Table, row: int) -> list[int]:
    """As `table.held`, without numpy: rows are short here."""
    cells, sinks = table.pages[row].T.tolist(), table.sink_columns
    ring = table.width - sinks
    logical = [*range(table.kept.item(row)), *range(table.first.item(row), table.end.item(row))]
    return [page for number in logical for page in cells[number if number < sinks else sinks + (number - sinks) % ring]]
