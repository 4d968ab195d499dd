"""Between scheduler and prefix index: names requests' tokens, starts rows behind hits, hands over what they computed.

A prompt's whole units go to the index at its boundaries and at its end, or before if someone waits who may share them;
what a request yields only when it leaves its row, in one go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quire.cache.gap import gap
from quire.cache.keys import end_key, extend, root_hash, root_key, scope_of
from quire.cache.memory import StageMemory
from quire.cache.nodes import NO_NODES, Chain
from quire.cache.pool import Holder
from quire.cache.prefix import Hit, Place, PrefixIndex, missed
from quire.cache.reuse_times import Forecast, Origin
from quire.core.events import CheckpointKept, PrefixEvicted, PrefixKept, Publisher
from quire.core.reasons import Why
from quire.core.request import Request
from quire.core.step import Capture
from quire.core.tier import Keeper
from quire.plan.file import layout_fingerprint
from quire.plan.plan import Plan
from quire.scheduler.junctions import Junctions
from quire.scheduler.rows import NEVER, Ints, Rows
from quire.scheduler.stores import Stores
from quire.scheduler.waiting import Waiting

Copy = tuple[int, int, Ints, Ints]
"""stage, kind, source pages, target pages"""
MOST_EVICTIONS = 4
"""Bundles that a checkpoint may push out to find room."""


BEGINNINGS_REMEMBERED = 65_536


@dataclass(frozen=True, slots=True)
class Captured:
    """States of a row after so many units, in pages that are pinned until their step has settled."""

    units: int
    pages: tuple[tuple[int, int, Ints], ...]
    """(stage, kind, pages)."""


class Reuse:
    def __init__(
        self,
        plan: Plan,
        memories: list[StageMemory],
        rows: Rows,
        copies: list[Copy],
        publisher: Publisher,
        keeper: Keeper | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        self.memories = memories
        self.index = PrefixIndex(plan, memories, forecast)
        self.rows = rows
        self.junctions = Junctions()
        self.stores = Stores(keeper, plan, self.index, copies, publisher)
        self._publisher = publisher
        self._copies = copies
        """To be done before the next step, in order; compaction adds to them as well."""
        self._layout = layout_fingerprint(plan)
        self._scopes_of: dict[bytes, bytes] = {}
        """By how prompts begin: the root of the scope that last computed such a beginning."""
        self._marks: dict[int, list[int]] = {}
        """Units behind which a row will keep a boundary, the nearest last."""
        self._chains: dict[int, Chain] = {}
        """Nodes of a row's tokens when it was last looked at; some may be forgotten by now."""
        self._settled: dict[int, int] = {}
        """Units of rows' prompts that settled and that the index has not got yet."""
        self._lines: dict[int, int] = {}
        """Hits in a row that led to each row."""
        self._leaves_spares: dict[int, bool] = {}
        """Whether the index keeps what a row leaves on its way through its prompt."""
        self._queued: dict[bytes, dict[int, Waiting]] = {}
        """Requests in the queue, by the first unit of their prompts and by arrival."""
        self.changed: dict[int, Waiting] = {}
        """Those for which more may be cached by now, by arrival."""
        self._captured: dict[int, list[Captured]] = {}
        """States that steps in flight write for the cache, in ascending order of tokens."""

    # ── requests come and go ──────────────────────────────────────────────

    def name(self, waiting: Waiting) -> None:
        """Gives a request the keys of its prompt, and notes where it parts from others that were not computed yet."""
        if self.index.disabled:
            return
        self.index.arrivals += 1
        waiting.root = self.root_of(waiting.request.scope)
        start = root_hash(waiting.root, self.index.unit)
        waiting.keys, waiting.behind = extend(start, scope_of(waiting.root), waiting.request.prompt, self.index.unit)
        if self.index.coverage.has_boundaries and (shared := self.junctions.add(waiting.keys)):
            self._want(waiting.keys, shared)

    def root_of(self, scope: str) -> bytes:
        """The key that all prefixes of a scope begin with."""
        return root_key((self._layout, scope))

    def expect(self, waiting: Waiting) -> int:
        """A request stays in the queue: what it would go on from is evicted last. Returns how many tokens that are."""
        index, nodes = self.index, self.index.nodes
        if index.disabled or not waiting.may_reuse or not waiting.keys:
            return 0
        self._queued.setdefault(waiting.keys[0], {})[waiting.arrival] = waiting
        if not self._is_stale(waiting):
            return waiting.cached
        self._let_go(waiting)
        tokens = waiting.tokens(0, waiting.known) if len(waiting.outputs) else waiting.request.prompt
        hit = index.find(waiting.keys, waiting.root, tokens)
        waiting.is_found = True
        if hit.tokens:
            node = index.expect(hit.chain)
            waiting.awaits, waiting.chain = Place(node, nodes.key[node]), hit.chain
        return hit.tokens

    def shared_pages(self, waiting: Waiting) -> list[list[int]]:
        """By stage and kind: pages that a request would share with running ones, and those with each other, for as long
        as they run: of kinds that grow."""
        place, nodes = waiting.awaits, self.index.nodes
        is_there = place is not None and nodes.key[place.node] == place.key
        chain = waiting.chain if is_there else NO_NODES
        return [
            [
                (memory.pool.shelves[kind].shared + memory.held_by_requests(kind, chain) if table.kind.grows else 0)
                for kind, table in enumerate(memory.tables)
            ]
            for memory in self.memories
        ]

    def _is_stale(self, waiting: Waiting) -> bool:
        """Whether what it would go on from may be gone, or more of it may be cached by now."""
        nodes, place = self.index.nodes, waiting.awaits
        if waiting.arrival in self.changed or not waiting.is_found:
            return True
        return place is not None and (nodes.key[place.node] != place.key or not nodes.awaited[place.node])

    def no_longer_expect(self, waiting: Waiting) -> None:
        """A request leaves the queue."""
        self._let_go(waiting)
        if waiting.keys and waiting.keys[0] in self._queued:
            alike = self._queued[waiting.keys[0]]
            alike.pop(waiting.arrival, None)
            if not alike:
                del self._queued[waiting.keys[0]]

    def _let_go(self, waiting: Waiting) -> None:
        self.changed.pop(waiting.arrival, None)
        waiting.is_found = False
        if waiting.awaits is not None:
            self.index.no_longer_expect(*waiting.awaits)
            waiting.awaits = None

    def _note_kept(self, keys: Sequence[bytes], units: int) -> None:
        """The index has so many units of a prompt now: queued requests that share more of them than they would have
        found are looked up again."""
        for waiting in self._queued.get(keys[0], {}).values() if units else ():
            known = waiting.cached // self.index.unit
            if known < min(units, len(waiting.keys)) and waiting.keys[known] == keys[known]:
                self.changed[waiting.arrival] = waiting

    def forget(self, waiting: Waiting) -> None:
        """A request has ended."""
        self.no_longer_expect(waiting)
        if self.index.coverage.has_boundaries and not self.index.disabled:
            self.junctions.remove(waiting.keys[: len(waiting.request.prompt) // self.index.unit])

    def _want(self, keys: list[bytes], units: int) -> None:
        """Someone will go on behind these units: whoever computes them keeps a boundary there."""
        key = keys[units - 1]
        self.catch_up()
        self.junctions.want(key)
        computing = self.junctions.computing(keys, self.index.nodes.depth(keys))
        if computing is None or computing[1] < units or units in self._marks[computing[0]]:
            return
        row = computing[0]
        if not self.index.coverage.has_states or units * self.index.unit > self.rows.computed[row]:
            self._marks[row] = sorted([*self._marks[row], units], reverse=True)
            self._set_capture(row, self.rows.computed.item(row))

    def is_coming(self, waiting: Waiting) -> int | None:
        """The row that is computing more of this prompt than could be reused now: worth waiting for."""
        if not waiting.may_reuse:
            return None
        computing = self.junctions.computing(waiting.keys, self.index.nodes.depth(waiting.keys))
        return None if computing is None else computing[0]

    # ── starting behind a hit ─────────────────────────────────────────────

    def start(self, row: int, waiting: Waiting) -> None:
        """Starts a row behind the longest prefix that every kind can prove and that there is room to go on from."""
        tokens = self.rows.tokens(row, 0, int(self.rows.known[row]))
        keys = self._keys(row, waiting, len(tokens) // self.index.unit) if not self.index.disabled else []
        self.no_longer_expect(waiting)
        hit = self.index.find(keys, waiting.root, tokens) if waiting.may_reuse else missed(Why.PROMPT_LOGPROBS)
        found = hit
        waiting.came_from, waiting.line = None, 0
        if not waiting.is_counted:
            self.index.eviction.now += len(waiting.request.prompt)
        while hit.tokens and not self._adopt(row, hit, waiting):
            hit = self.index.find(keys, waiting.root, tokens, hit.tokens - 1)
        waiting.hit_tokens, waiting.miss = hit.tokens, self._why(hit, waiting)
        self.rows.settled[row] = self.rows.computed[row] = hit.tokens
        if not self.index.disabled:
            if waiting.may_reuse:
                self._note_gap(waiting, keys, found, (len(tokens) - 1) // self.index.unit)
            self._set_out(row, waiting, keys, hit.tokens // self.index.unit)

    def _note_gap(self, waiting: Waiting, keys: list[bytes], found: Hit, most: int) -> None:
        """Learns from what was not found any more, and asks for a boundary where prompts part."""
        index, tokens, overlap = self.index, waiting.hit_tokens, found.overlap
        reusable = tokens, found.tokens, overlap * index.unit
        waiting.gap = gap(index.eviction.ghosts, keys[:most], reusable, waiting.arrival, index.unit)
        if not waiting.is_counted:
            waiting.is_counted = True
            index.miss(keys, tokens // index.unit, overlap, most)
        if index.coverage.has_boundaries and (units := index.parts_at(keys, overlap, most)) * index.unit > tokens:
            self.junctions.want(keys[units - 1])

    def _why(self, hit: Hit, waiting: Waiting) -> Why | None:
        """Why nothing was found; for operators: it says that another scope has begun with the same tokens."""
        if hit.miss is Why.NO_OVERLAP:
            scopes = self._scopes_of.get(self._beginning(waiting.request))
            return Why.SCOPE if scopes not in (None, waiting.root) else Why.NO_OVERLAP
        return hit.miss

    def _beginning(self, request: Request) -> bytes:
        """The first unit of a prompt, whoever it belongs to."""
        return end_key(b"", request.prompt[: self.index.unit])

    def _note_scope(self, request: Request) -> None:
        self._scopes_of[self._beginning(request)] = self.root_of(request.scope)
        if len(self._scopes_of) > BEGINNINGS_REMEMBERED:
            del self._scopes_of[next(iter(self._scopes_of))]

    def _set_out(self, row: int, waiting: Waiting, keys: list[bytes], begin: int) -> None:
        """Says what the row is going to compute of its prompt, and where it will keep boundaries."""
        end = (self.rows.prompt.item(row) - 1) // self.index.unit
        self._go_on(row, keys, begin, end)
        wanted = self.junctions.wanted
        marks = [end] if self.index.coverage.has_boundaries and end > begin else []
        if marks and wanted:
            marks += [unit for unit in range(end - 1, begin, -1) if keys[unit - 1] in wanted]
        self._marks[row], self._chains[row], self._lines[row] = marks, NO_NODES, waiting.line
        self._leaves_spares[row] = bool(marks) and self.index.wants_spares()
        self._set_capture(row, begin * self.index.unit)

    def _go_on(self, row: int, keys: Sequence[bytes], done: int, units: int) -> None:
        self.junctions.go_on(row, keys, done, units)
        self.rows.next_unit[row] = (done + 1) * self.index.unit if done < units else NEVER

    def skip(self, row: int) -> None:
        """A load brings the row's tokens up to where it now stands: boundaries before that are not its business."""
        place = int(self.rows.computed[row]) // self.index.unit
        self._marks[row] = [mark for mark in self._marks[row] if mark > place]
        self._set_capture(row, place * self.index.unit)

    def _set_capture(self, row: int, computed: int) -> None:
        """Where the next state of the row is to be captured, behind `computed` tokens."""
        if self.index.coverage.has_states:
            self.rows.next_capture[row] = next(self._captures(row, computed // self.index.unit), NEVER)

    def _captures(self, row: int, begin: int) -> Iterator[int]:
        """Tokens after which states are captured, behind so many units: at boundaries, and on the way."""
        unit, marks = self.index.unit, self._marks[row]
        if not marks:
            return
        each = self.index.coverage.spare_units if self._leaves_spares[row] else marks[0] + 1
        places = {mark for mark in marks if mark > begin}
        places.update(range(begin // each * each + each, marks[0], each))
        yield from (place * unit for place in sorted(places))

    def _adopt(self, row: int, hit: Hit, waiting: Waiting) -> bool:
        """Shares the hit's pages with the row. What it will write on becomes its own: a copy if there is room, else
        the cache's own page if nobody else holds it. False: neither, and nothing has changed."""
        for memory in self.memories:
            memory.adopt(row, hit.tokens, hit.chain)
        own = [memory.written_on(hit.tokens) for memory in self.memories]
        if self._has_room(own):
            for stage, (memory, kinds) in enumerate(zip(self.memories, own, strict=True)):
                self._copies += [(stage, kind, *memory.part(kind, row)) for kind in kinds]
            self._note_hit(waiting, hit)
            return True
        if all(memory.can_take_over(kinds, row) for memory, kinds in zip(self.memories, own, strict=True)):
            for memory, kinds in zip(self.memories, own, strict=True):
                memory.take_over(kinds, row, int(hit.chain[-1]))
            self._note_hit(waiting, hit)
            self.index.lost(int(hit.chain[-1]))
            return True
        for memory in self.memories:
            memory.release(row)
        return False

    def _note_hit(self, waiting: Waiting, hit: Hit) -> None:
        nodes, node = self.index.nodes, hit.chain.item(-1)
        waiting.came_from, waiting.line = Place(node, nodes.key[node]), nodes.line.item(node) + 1
        if not waiting.is_counted:
            self.index.use(hit.chain)

    def _has_room(self, kinds: list[list[int]]) -> bool:
        """Whether there is a free page for each group of these kinds on every stage."""
        for memory, own in zip(self.memories, kinds, strict=True):
            needs = [table.plan.groups if kind in own else 0 for kind, table in enumerate(memory.tables)]
            if memory.pool.sheets_short(needs):
                return False
        return True

    # ── handing over ──────────────────────────────────────────────────────

    def capture(self, rows: Ints, starts: Ints, ends: Ints) -> tuple[Capture, ...]:
        """States that the next step writes for the cache while rows pass the places where they will be wanted."""
        captures: list[Capture] = []
        if not self.index.coverage.has_states:
            return ()
        for entry in (ends >= self.rows.next_capture[rows]).nonzero()[0].tolist():
            row, end = rows.item(entry), ends.item(entry)
            for tokens in self._captures(row, starts.item(entry) // self.index.unit):
                if tokens > end:
                    break
                captures += self._capture(row, entry, tokens)
            self._set_capture(row, end)
        return tuple(captures)

    def _capture(self, row: int, entry: int, tokens: int) -> list[Capture]:
        """Takes pages for the states after so many tokens, if there is room or room can be made."""
        units = tokens // self.index.unit
        if not self._has_checkpoint_room(is_spare=units not in self._marks[row]):
            return []
        pages = tuple(
            (stage, kind, memory.pool.take(kind, memory.tables[kind].plan.groups, Holder.PIN))
            for stage, (memory, kinds) in enumerate(zip(self.memories, self.index.coverage.states, strict=True))
            for kind in kinds
        )
        self._captured.setdefault(row, []).append(Captured(units, pages))
        return [Capture(entry, tokens, *own) for own in pages]

    def _has_checkpoint_room(self, is_spare: bool) -> bool:
        """Room for one more state of each kind; others go for a boundary, and for a spare that is worth more."""
        coverage = self.index.coverage
        for _ in range(MOST_EVICTIONS):
            if coverage.has_checkpoint_room() and self._has_room(coverage.states):
                return True
            if is_spare and not self.index.spares_are_worth_more():
                return False
            evicted = self.index.evict(0, must=False)
            if not evicted.pieces:
                return False
            self._publisher.publish(PrefixEvicted(self._publisher.step, *evicted))
        return False

    def remember(self, rows: Ints, settled: Ints) -> None:
        """Hands prompts to the index where a boundary or their last whole unit has settled, before windows give their
        pages back; notes how far others have come."""
        for place in (settled >= self.rows.next_unit[rows]).nonzero()[0].tolist():
            row, marks = rows.item(place), self._marks[rows.item(place)]
            most_units = self.junctions.ahead[row][2]
            units = min(settled.item(place) // self.index.unit, most_units)
            if units >= (marks[-1] if marks else most_units) or self._leaves_spares[row] or row in self._captured:
                self._remember(row, units)
            else:
                if row not in self._settled and not self.junctions.ahead[row][1]:
                    self._note_scope(self.rows.requests[row])
                self._settled[row] = units
                self.rows.next_unit[row] = (units + 1) * self.index.unit

    def catch_up(self) -> None:
        """Hands over what has settled: someone is about to look for it."""
        for row, units in list(self._settled.items()):
            self._remember(row, units)

    def _remember(self, row: int, units: int) -> None:
        keys, before, most_units = self.junctions.ahead[row]
        if self._settled.pop(row, None) is None and not before:
            self._note_scope(self.rows.requests[row])
        line = self._lines[row]
        chain = self._chains[row] = self.index.remember(row, keys, units, self._chains[row], line)
        self._go_on(row, keys, units, most_units)
        states = self._attach(row, chain)
        if self._leaves_spares[row]:
            self.index.keep_spares(row, chain, before, most_units - units, states)
        marks = self._marks[row]
        while marks and marks[-1] <= units:
            mark = marks.pop()
            origin = Origin.PROMPT if mark == most_units else Origin.JUNCTION
            self._keep_boundary(row, keys, chain[:mark], origin, line)
        self.index.settle(chain)
        self._note_kept(keys, units)

    def _attach(self, row: int, chain: Chain) -> int:
        """Captured states that have settled go to their nodes, unless those have one; returns how many did."""
        attached, captured = 0, self._captured.get(row, [])
        while captured and captured[0].units <= len(chain):
            one = captured.pop(0)
            node = chain.item(one.units - 1)
            for stage, kind, pages in one.pages:
                self.memories[stage].attach_state(kind, node, pages)
            attached += 1
        if not captured:
            self._captured.pop(row, None)
        return attached

    def give_up_captures(self) -> bool:
        """States that steps in flight write for the cache are not kept: their pages are needed. False: there are none.

        Whoever takes such a page writes to it in a later step, after the capture."""
        rows = list(self._captured)
        for row in rows:
            self._release_captured(row)
        return bool(rows)

    def _release_captured(self, row: int) -> None:
        for one in self._captured.pop(row, ()):
            for stage, kind, pages in one.pages:
                self.memories[stage].pool.drop(kind, pages, Holder.PIN)

    def _keep_boundary(self, row: int, keys: Sequence[bytes], chain: Chain, origin: Origin, line: int) -> None:
        self.junctions.wanted.pop(keys[len(chain) - 1], None)
        coverage = self.index.coverage
        if coverage.has_states:
            if not coverage.has_state(chain.item(-1)):
                return
            name, tokens = self.rows.requests[row].name, len(chain) * self.index.unit
            self._publisher.publish(CheckpointKept(self._publisher.step, name, tokens))
        self.index.keep_boundary(row, chain, origin, line)
        self.stores.offer(chain)

    def leave(self, row: int, waiting: Waiting, hand_over: bool, to_tier: bool = True) -> None:
        """A row is about to give its pages back: the cache keeps what someone may go on from, and so does a tier."""
        if self.index.disabled:
            return
        state, unit = self.rows, self.index.unit
        self.junctions.leave(row)
        self._release_captured(row)
        del self._marks[row], self._leaves_spares[row]
        self._settled.pop(row, None)
        known, line = self._chains.pop(row), self._lines.pop(row)
        computed = int(state.computed[row])
        if not hand_over or state.is_loading[row] or not computed:
            return
        self.index.eviction.now += state.output_counts.item(row)
        if computed <= state.known[row]:
            units = computed // unit
            keys, behind = self._keys(row, waiting, units), state.tokens(row, units * unit, computed)
            chain = self.index.keep_end(row, keys, units, waiting.root, behind, waiting.came_from, known, line)
        else:
            units = int(state.settled[row]) // unit
            chain = self.index.remember(row, self._keys(row, waiting, units), units, known, line)
            if units:
                self.index.settle(chain)
        self._note_kept(waiting.keys, units)
        if len(chain):
            self._report_kept(waiting, chain.item(-1))
        if to_tier:
            self.stores.offer(chain)

    def _report_kept(self, waiting: Waiting, end: int) -> None:
        """For routers: how much of its tokens a later request can go on behind."""
        nodes = self.index.nodes
        if nodes.is_boundary[end] or not self.index.coverage.has_boundaries:
            name, key = waiting.request.name, nodes.key[end].hex()
            self._publisher.publish(PrefixKept(self._publisher.step, name, key, nodes.tokens.item(end)))

    def _keys(self, row: int, ticket: Waiting, units: int) -> list[bytes]:
        """A request's keys, at least for its first `units` units."""
        known, unit = len(ticket.keys), self.index.unit
        if known < units:
            assert ticket.behind is not None, "whoever has a row was named"
            tokens = self.rows.tokens(row, known * unit, units * unit)
            more, ticket.behind = extend(ticket.behind, scope_of(ticket.root), tokens, unit)
            ticket.keys += more
        return ticket.keys
