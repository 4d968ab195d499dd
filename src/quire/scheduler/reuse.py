"""Connects scheduler and prefix index: computes keys, starts rows after hits, adds computed tokens to the index.

A prompt's whole units are added to the index at its boundaries and at its end, or earlier if a queued request may share
them. Outputs are added all at once, when the request leaves its row.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.cache.memory import StageMemory
from quire.core.events import CheckpointKept, PrefixKept, Publisher
from quire.core.reasons import Why
from quire.core.step import Capture
from quire.core.tier import RecordStore
from quire.plan.file import layout_fingerprint
from quire.plan.plan import Plan
from quire.prefix.beginnings import Beginnings
from quire.prefix.captures import Captures
from quire.prefix.forecast import Forecast, Origin
from quire.prefix.gap import gap
from quire.prefix.hit import Hit, Place, Turn, no_hit
from quire.prefix.index import PrefixIndex
from quire.prefix.junctions import Junctions
from quire.prefix.keys import extend, root_hash, root_key, scope_of
from quire.prefix.marks import Marks
from quire.prefix.nodes import NO_NODES, Chain
from quire.prefix.points import Points
from quire.scheduler.expectations import Expectations
from quire.scheduler.next_step import NextStep
from quire.scheduler.queue import Ticket
from quire.scheduler.rows import NEVER, Ints, Rows
from quire.scheduler.stores import Stores


class Reuse:
    """What rows reuse of earlier requests, and what they leave for later ones."""

    def __init__(
        self,
        plan: Plan,
        memories: list[StageMemory],
        rows: Rows,
        next_step: NextStep,
        publisher: Publisher,
        *,
        keeper: RecordStore | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        self.memories = memories
        self.index = PrefixIndex(plan, memories, forecast)
        self.rows = rows
        self.junctions = Junctions()
        self.expectations = Expectations(self.index)
        self.captures = Captures(self.index, memories, publisher)
        self.marks = Marks(self.index, self.captures)
        self.points = Points(self.index, memories, self.captures)
        self.stores = Stores(keeper, plan, self.index, next_step, publisher)
        self._publisher, self._next_step = publisher, next_step
        self._layout = layout_fingerprint(plan)
        self.beginnings = Beginnings(self.index.unit, self.root_of)
        self._chains: dict[int, Chain] = {}
        """Nodes of a row's tokens as of its last addition to the index; some may be evicted by now."""
        self._settled: dict[int, int] = {}
        """Settled units of rows' prompts, for rows with units that are not in the index yet."""
        self._tickets: dict[int, Ticket] = {}
        """Of the rows."""

    # ── requests come and go ──────────────────────────────────────────────

    def name(self, ticket: Ticket) -> None:
        """Computes the keys of a request's prompt, and notes where it diverges from other prompts that wait or run."""
        if self.index.disabled:
            return
        self.index.arrivals += 1
        ticket.root = self.root_of(ticket.request.scope)
        start = root_hash(ticket.root, self.index.unit)
        ticket.keys, ticket.hash_state = extend(start, scope_of(ticket.root), ticket.request.prompt, self.index.unit)
        if self.index.coverage.has_boundaries and (shared := self.junctions.add(ticket.keys)):
            self._want(ticket.keys, shared)

    def root_of(self, scope: str) -> bytes:
        """The key that all keys of a scope are derived from."""
        return root_key((self._layout, scope))

    def forget(self, ticket: Ticket) -> None:
        """A request has ended."""
        self.expectations.forget(ticket)
        if self.index.coverage.has_boundaries and not self.index.disabled:
            self.junctions.remove(ticket.keys[: len(ticket.request.prompt) // self.index.unit])

    def _want(self, keys: list[bytes], units: int) -> None:
        """A request will continue after these units: the row that computes them keeps a boundary there."""
        key = keys[units - 1]
        self.catch_up()
        self.junctions.want(key)
        computing = self.junctions.computing(keys, self.index.nodes.depth(keys))
        if computing is None or computing[1] < units or units in self.marks.units[computing[0]]:
            return
        row = computing[0]
        if not self.index.coverage.has_states or units * self.index.unit > self.rows.computed[row]:
            self.marks.add(row, units)
            self._set_capture(row, self.rows.computed.item(row))

    def is_coming(self, ticket: Ticket) -> int | None:
        """The row that is computing more of this prompt than could be reused now: worth waiting for."""
        if not ticket.may_reuse:
            return None
        computing = self.junctions.computing(ticket.keys, self.index.nodes.depth(ticket.keys))
        if computing is not None:
            return computing[0]
        return self.points.computing(ticket.root, ticket.keys, ticket.request.prompt)

    # ── rows that others branch off ───────────────────────────────────────

    def branch_off(self, row: int, ticket: Ticket, tokens: int) -> None:
        """Others will continue from a row's first `tokens` tokens: keeps a boundary there, now or when it arrives."""
        if not self.index.disabled and not self.rows.is_loading[row]:
            for copy in self.points.branch_off(row, self._turn(row, ticket, tokens), self.rows):
                self._next_step.copy(*copy)

    def pass_points(self) -> None:
        """Rows that have come to where others branch off keep a boundary there, and may go on."""
        for row, tokens in self.points.arrive(self.rows):
            self.branch_off(row, self._tickets[row], tokens)

    def _turn(self, row: int, ticket: Ticket, tokens: int) -> Turn:
        units, unit = tokens // self.index.unit, self.index.unit
        keys, rest = self._keys(row, ticket, units), self.rows.tokens(row, units * unit, tokens)
        return Turn(keys, units, ticket.root, rest, ticket.came_from, self._chains[row], ticket.line)

    # ── starting after a hit ──────────────────────────────────────────────

    def start(self, row: int, ticket: Ticket) -> None:
        """Starts a row after the longest prefix that every kind has and that there is room to continue from."""
        tokens = self.rows.tokens(row, 0, int(self.rows.known[row]))
        keys = self._keys(row, ticket, len(tokens) // self.index.unit) if not self.index.disabled else []
        self.expectations.forget(ticket)
        hit = self.index.find(keys, ticket.root, tokens) if ticket.may_reuse else no_hit(Why.PROMPT_LOGPROBS)
        found, ticket.came_from, ticket.line = hit, None, 0
        if not ticket.is_counted:
            self.index.eviction.now += len(ticket.request.prompt)
        while hit.tokens and not self._adopt(row, hit, ticket):
            hit = self.index.find(keys, ticket.root, tokens, hit.tokens - 1)
        ticket.hit_tokens, ticket.miss = hit.tokens, self.beginnings.why(hit.miss, ticket.request)
        self.rows.settled[row] = self.rows.computed[row] = hit.tokens
        if not self.index.disabled:
            if ticket.may_reuse:
                self._note_gap(ticket, keys, found, (len(tokens) - 1) // self.index.unit)
            self._set_out(row, ticket, keys, hit.tokens // self.index.unit)

    def _note_gap(self, ticket: Ticket, keys: list[bytes], found: Hit, most: int) -> None:
        """Learns from what was evicted and missed, and requests a boundary where prompts diverge."""
        index, tokens = self.index, ticket.hit_tokens
        overlap = min(found.overlap, index.nodes.depth(keys))  # for what a branch copies, some of it may be evicted
        reusable = tokens, found.tokens, overlap * index.unit
        ticket.gap = gap(index.eviction.ghosts, keys[:most], reusable, ticket.arrival, index.unit)
        if not ticket.is_counted:
            ticket.is_counted = True
            index.uses.note_miss(keys, tokens // index.unit, overlap, most)
        if index.coverage.has_boundaries and (units := index.parts_at(keys, overlap, most)) * index.unit > tokens:
            self.junctions.want(keys[units - 1])

    def _set_out(self, row: int, ticket: Ticket, keys: list[bytes], begin: int) -> None:
        """Registers what the row is going to compute of its prompt, and where it will keep boundaries."""
        end = (self.rows.prompt.item(row) - 1) // self.index.unit
        marks = self.junctions.marks(keys, begin, end) if self.index.coverage.has_boundaries else []
        self._chains[row], self._tickets[row] = NO_NODES, ticket
        self.marks.enter(row, marks, ticket.request.points, ticket.hit_tokens)
        self._go_on(row, keys, begin, end)
        self._set_capture(row, ticket.hit_tokens)
        if ticket.request.is_branch and (last := self.rows.prompt.item(row) - 1) > self.rows.computed[row]:
            self.branch_off(row, ticket, last)

    def _go_on(self, row: int, keys: Sequence[bytes], done: int, units: int) -> None:
        self.junctions.go_on(row, keys, done, units)
        unit_end = (done + 1) * self.index.unit if done < units else NEVER
        self.rows.next_unit[row] = self.marks.next_place(row, unit_end)

    def skip(self, row: int) -> None:
        """A load provides the row's tokens up to `computed`: the row keeps no boundaries before that."""
        self.marks.skip(row, computed := int(self.rows.computed[row]))
        self._set_capture(row, computed)

    def _set_capture(self, row: int, computed: int) -> None:
        """Sets where the row's next state is captured, after `computed` tokens."""
        if self.index.coverage.has_states:
            self.rows.next_capture[row] = next(self.marks.captures(row, computed), NEVER)

    def _adopt(self, row: int, hit: Hit, ticket: Ticket) -> bool:
        """Shares the hit's pages with the row. Pages that it will write to become its own: a copy if there is room,
        else the cache's page if no other request holds it. False: neither is possible, and nothing has changed."""
        for memory in self.memories:
            memory.adopt(row, hit.tokens, hit.chain)
        own = [memory.written_on(hit.tokens) for memory in self.memories]
        if self.points.has_room(own, hit.chain, ticket.request.is_branch):
            for stage, (memory, kinds) in enumerate(zip(self.memories, own, strict=True)):
                for kind in kinds:
                    self._next_step.copy(stage, kind, *memory.part(kind, row, hit.tokens))
            self._note_hit(ticket, hit)
            return True
        is_leased = self.index.leases.is_end(int(hit.chain[-1]))
        if not is_leased and all(m.can_take_over(kinds, row) for m, kinds in zip(self.memories, own, strict=True)):
            for memory, kinds in zip(self.memories, own, strict=True):
                memory.take_over(kinds, row, int(hit.chain[-1]))
            self._note_hit(ticket, hit)
            self.index.lost(int(hit.chain[-1]))
            return True
        for memory in self.memories:
            memory.release(row)
        return False

    def _note_hit(self, ticket: Ticket, hit: Hit) -> None:
        nodes, node = self.index.nodes, hit.chain.item(-1)
        ticket.came_from, ticket.line = Place(node, nodes.key[node]), nodes.line.item(node) + 1
        if not ticket.is_counted:
            self.index.uses.note_hit(hit.chain)

    # ── adding to the index ───────────────────────────────────────────────

    def capture(self, rows: Ints, starts: Ints, ends: Ints) -> tuple[Capture, ...]:
        """States that the next step writes for the cache, at the places where they will be needed."""
        captures: list[Capture] = []
        if not self.index.coverage.has_states:
            return ()
        for entry in (ends >= self.rows.next_capture[rows]).nonzero()[0].tolist():
            row, end = rows.item(entry), ends.item(entry)
            for tokens in self.marks.captures(row, starts.item(entry)):
                if tokens > end:
                    break
                captures += self.captures.take(row, entry, tokens, self.marks.is_spare(row, tokens))
            self._set_capture(row, end)
        return tuple(captures)

    def remember(self, rows: Ints, settled: Ints) -> None:
        """Adds prompts to the index if a boundary or their last whole unit has settled, before windows free their
        pages; for other rows notes how many units have settled."""
        for place in (settled >= self.rows.next_unit[rows]).nonzero()[0].tolist():
            row, end = rows.item(place), settled.item(place)
            points = self.marks.pop_points(row, end)
            self._remember_units(row, end)
            for point in points:
                self._keep_point(row, point)

    def _remember_units(self, row: int, settled: int) -> None:
        marks, (_, done, most_units) = self.marks.units[row], self.junctions.ahead.get(row, ((), 0, 0))
        units, known = min(settled // self.index.unit, most_units), max(done, self._settled.get(row, 0))
        is_due = units >= (marks[-1] if marks else most_units) or self.marks.leaves_spares[row] or row in self.captures
        if units > known and is_due:
            self._remember(row, units)
            return
        if units > known:
            if not known:
                self.beginnings.note(self.rows.requests[row])
            self._settled[row] = units
        unit_end = (max(units, known) + 1) * self.index.unit if row in self.junctions.ahead else NEVER
        self.rows.next_unit[row] = self.marks.next_place(row, unit_end)

    def _keep_point(self, row: int, point: int) -> None:
        """Keeps a boundary after exactly `point` tokens."""
        ticket = self._tickets[row]
        if self.marks.keep_point(row, self._turn(row, ticket, point)) and self.index.coverage.has_states:
            self._publisher.publish(CheckpointKept(self._publisher.step, ticket.request.name, point))

    def catch_up(self) -> None:
        """Adds all settled units to the index, before a lookup."""
        for row, units in list(self._settled.items()):
            self._remember(row, units)

    def _remember(self, row: int, units: int) -> None:
        keys, before, most_units = self.junctions.ahead[row]
        if self._settled.pop(row, None) is None and not before:
            self.beginnings.note(self.rows.requests[row])
        line = self._tickets[row].line
        chain = self._chains[row] = self.index.remember(row, keys, units, self._chains[row], line)
        self._go_on(row, keys, units, most_units)
        states = self.captures.attach(row, chain)
        if self.marks.leaves_spares[row]:
            self.index.spares.keep(row, chain, before, most_units - units, states)
        marks = self.marks.units[row]
        while marks and marks[-1] <= units:
            mark = marks.pop()
            origin = Origin.PROMPT if mark == most_units else Origin.JUNCTION
            self._keep_boundary(row, keys, chain[:mark], origin, line)
        self.index.settle(chain)
        self.expectations.note_kept(keys, units)

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

    def leave(self, row: int, ticket: Ticket, keep: bool, to_tier: bool = True) -> None:
        """A row is about to free its pages: cache and tier keep what a later request may continue from."""
        if self.index.disabled:
            return
        state, unit = self.rows, self.index.unit
        for book in (self.junctions, self.captures, self.points, self.marks):
            book.leave(row)
        self._settled.pop(row, None)
        computed = int(state.computed[row])
        is_known = computed <= state.known[row]
        turn = self._turn(row, ticket, computed if is_known else int(state.settled[row]) // unit * unit)
        del self._chains[row], self._tickets[row]
        if not keep or state.is_loading[row] or not computed:
            return
        self.index.eviction.now += state.output_counts.item(row)
        if is_known:
            chain = self.index.keep_end(row, turn)
        else:
            chain = self.index.remember(row, turn.keys, turn.units, turn.known, turn.line)
            if turn.units:
                self.index.settle(chain)
        self.expectations.note_kept(ticket.keys, turn.units)
        if len(chain):
            self._report_kept(ticket, chain.item(-1))
        if to_tier:
            self.stores.offer(chain)

    def _report_kept(self, ticket: Ticket, end: int) -> None:
        """Publishes, for routers, the prefix that a later request can continue from."""
        nodes = self.index.nodes
        if nodes.is_boundary[end] or not self.index.coverage.has_boundaries:
            name, key = ticket.request.name, nodes.key[end].hex()
            self._publisher.publish(PrefixKept(self._publisher.step, name, key, nodes.tokens.item(end)))

    def _keys(self, row: int, ticket: Ticket, units: int) -> list[bytes]:
        """A request's keys, at least for its first `units` units."""
        known, unit = len(ticket.keys), self.index.unit
        if known < units:
            assert ticket.hash_state is not None, "whoever has a row was named"
            tokens = self.rows.tokens(row, known * unit, units * unit)
            more, ticket.hash_state = extend(ticket.hash_state, scope_of(ticket.root), tokens, unit)
            ticket.keys += more
        return ticket.keys
