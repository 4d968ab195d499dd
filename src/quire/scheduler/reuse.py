"""Between scheduler and prefix index: names requests' tokens, starts rows behind hits, hands over what they computed.

A prompt's whole units go to the index at its boundaries and at its end, or before if someone waits who may share them;
what a request yields only when it leaves its row, in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.cache.keys import end_key, extend, root_hash, root_key, scope_of
from quire.cache.memory import StageMemory
from quire.cache.nodes import NO_NODES, Chain
from quire.cache.prefix import Hit, Miss, PrefixIndex, missed
from quire.core.events import What
from quire.core.request import Request
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


class Reuse:
    def __init__(
        self,
        plan: Plan,
        memories: list[StageMemory],
        rows: Rows,
        copies: list[Copy],
        tell: Callable[..., None],
        keeper: Keeper | None = None,
    ) -> None:
        self.memories = memories
        self.index = PrefixIndex(plan, memories)
        self.rows = rows
        self.junctions = Junctions()
        self.stores = Stores(keeper, plan, self.index, copies, tell)
        self._tell = tell
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

    # ── requests come and go ──────────────────────────────────────────────

    def name(self, waiting: Waiting) -> None:
        """Gives a request the keys of its prompt, and notes where it parts from others that were not computed yet."""
        if self.index.disabled:
            return
        waiting.root = self.root_of(waiting.request.scope)
        start = root_hash(waiting.root, self.index.unit)
        waiting.keys, waiting.behind = extend(start, scope_of(waiting.root), waiting.request.prompt, self.index.unit)
        if self.index.coverage.has_boundaries and (shared := self.junctions.add(waiting.keys)):
            self._want(waiting.keys, shared)

    def root_of(self, scope: str) -> bytes:
        """The key that all prefixes of a scope begin with."""
        return root_key((self._layout, scope))

    def forget(self, waiting: Waiting) -> None:
        """A request has ended."""
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
            self._set_stop(row)

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
        hit = self.index.find(keys, waiting.root, tokens) if waiting.may_reuse else missed(Miss.PROMPT_LOGPROBS)
        overlap = hit.overlap
        while hit.tokens and not self._adopt(row, hit):
            hit = self.index.find(keys, waiting.root, tokens, hit.tokens - 1)
        waiting.hit_tokens, waiting.miss = hit.tokens, self._why(hit, waiting)
        waiting.came_from = (self.index.nodes.key[hit.chain[-1]] or b"") if hit.tokens % self.index.unit else b""
        self.rows.settled[row] = self.rows.computed[row] = hit.tokens
        if not self.index.disabled:
            if overlap * self.index.unit > hit.tokens:
                self.junctions.want(keys[overlap - 1])
            self._set_out(row, keys, hit.tokens // self.index.unit)

    def _why(self, hit: Hit, waiting: Waiting) -> str:
        """Why nothing was found; for operators: it tells that another scope has begun with the same tokens."""
        if hit.miss is Miss.NO_OVERLAP:
            scopes = self._scopes_of.get(self._beginning(waiting.request))
            return Miss.SCOPE.value if scopes not in (None, waiting.root) else Miss.NO_OVERLAP.value
        return hit.miss.value if hit.miss else ""

    def _beginning(self, request: Request) -> bytes:
        """The first unit of a prompt, whoever it belongs to."""
        return end_key(b"", request.prompt[: self.index.unit])

    def _note_scope(self, request: Request) -> None:
        self._scopes_of[self._beginning(request)] = self.root_of(request.scope)
        if len(self._scopes_of) > BEGINNINGS_REMEMBERED:
            del self._scopes_of[next(iter(self._scopes_of))]

    def _set_out(self, row: int, keys: list[bytes], begin: int) -> None:
        """Says what the row is going to compute of its prompt, and where it will keep boundaries."""
        end = (self.rows.prompt.item(row) - 1) // self.index.unit
        self._go_on(row, keys, begin, end)
        wanted = self.junctions.wanted
        marks = [end] if self.index.coverage.has_boundaries and end > begin else []
        if marks and wanted:
            marks += [unit for unit in range(end - 1, begin, -1) if keys[unit - 1] in wanted]
        self._marks[row], self._chains[row] = marks, NO_NODES
        self._set_stop(row)

    def _go_on(self, row: int, keys: Sequence[bytes], done: int, units: int) -> None:
        self.junctions.go_on(row, keys, done, units)
        self.rows.next_unit[row] = (done + 1) * self.index.unit if done < units else NEVER

    def skip(self, row: int) -> None:
        """A load brings the row's tokens up to where it now stands: boundaries before that are not its business."""
        place = int(self.rows.computed[row]) // self.index.unit
        self._marks[row] = [mark for mark in self._marks[row] if mark > place]
        self._set_stop(row)

    def _set_stop(self, row: int) -> None:
        marks = self._marks[row] if self.index.coverage.has_states else []
        most = self.rows.limit.item(row) - 1
        self.rows.most[row] = min(most, marks[-1] * self.index.unit) if marks else most

    def _adopt(self, row: int, hit: Hit) -> bool:
        """Shares the hit's pages with the row. What it will write on becomes its own: a copy if there is room, else
        the cache's own page if nobody else holds it. False: neither, and nothing has changed."""
        for memory in self.memories:
            memory.adopt(row, hit.tokens, hit.chain)
        own = [memory.written_on(hit.tokens) for memory in self.memories]
        if self._has_room(own):
            for stage, (memory, kinds) in enumerate(zip(self.memories, own, strict=True)):
                self._copies += [(stage, kind, *memory.part(kind, row)) for kind in kinds]
        elif all(memory.can_take_over(kinds, row) for memory, kinds in zip(self.memories, own, strict=True)):
            for memory, kinds in zip(self.memories, own, strict=True):
                memory.take_over(kinds, row, int(hit.chain[-1]))
            self.index.touch(hit.chain)
            self.index.lost(int(hit.chain[-1]))
            return True
        else:
            for memory in self.memories:
                memory.release(row)
            return False
        self.index.touch(hit.chain)
        return True

    def _has_room(self, kinds: list[list[int]]) -> bool:
        """Whether there is a free page for each group of these kinds on every stage."""
        for memory, own in zip(self.memories, kinds, strict=True):
            needs = [table.plan.groups if kind in own else 0 for kind, table in enumerate(memory.tables)]
            if memory.pool.sheets_short(needs):
                return False
        return True

    # ── handing over ──────────────────────────────────────────────────────

    def remember(self, rows: Ints, settled: Ints) -> None:
        """Hands prompts to the index where a boundary or their last whole unit has settled, before windows give their
        pages back; notes how far others have come."""
        for place in (settled >= self.rows.next_unit[rows]).nonzero()[0].tolist():
            row, marks = rows.item(place), self._marks[rows.item(place)]
            most_units = self.junctions.ahead[row][2]
            units = min(settled.item(place) // self.index.unit, most_units)
            if units >= (marks[-1] if marks else most_units):
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
        chain = self._chains[row] = self.index.remember(row, keys, units, self._chains[row])
        self._go_on(row, keys, units, most_units)
        marks = self._marks[row]
        while marks and marks[-1] <= units:
            self._keep_boundary(row, keys, chain[: marks.pop()])
        self.index.leaves.rank(chain)
        self._set_stop(row)

    def _keep_boundary(self, row: int, keys: Sequence[bytes], chain: Chain) -> None:
        self.junctions.wanted.pop(keys[len(chain) - 1], None)
        if self.index.coverage.has_states and not self._checkpoint(row, keys, chain):
            return
        self.index.keep_boundary(row, chain)
        self.stores.offer(chain)

    def _checkpoint(self, row: int, keys: Sequence[bytes], chain: Chain) -> bool:
        """Copies the row's states for a boundary, if they stand exactly there and room can be made."""
        if self.rows.settled[row] != len(chain) * self.index.unit:
            return False
        if self.index.coverage.usable(chain, self.index.nodes.tokens[chain])[-1]:
            return True
        for _ in range(MOST_EVICTIONS):
            if self.index.coverage.has_checkpoint_room() and self._has_room(self.index.coverage.states):
                break
            if not (forgotten := self.index.evict(0, must=False)):
                return False
            self._tell(What.EVICTED, tokens=forgotten)
        else:
            return False
        if self.index.nodes.depth(keys[: len(chain)]) < len(chain):
            return False
        self._copies += self.index.checkpoint(row, chain)
        self._tell(What.CHECKPOINT, self.rows.requests[row], tokens=len(chain) * self.index.unit)
        return True

    def leave(self, row: int, waiting: Waiting, hand_over: bool, to_tier: bool = True) -> None:
        """A row is about to give its pages back: the cache keeps what someone may go on from, and so does a tier."""
        if self.index.disabled:
            return
        state, unit = self.rows, self.index.unit
        self.junctions.leave(row)
        del self._marks[row]
        self._settled.pop(row, None)
        known = self._chains.pop(row)
        computed = int(state.computed[row])
        if not hand_over or state.is_loading[row] or not computed:
            return
        if computed <= state.known[row]:
            units = computed // unit
            keys, behind = self._keys(row, waiting, units), state.tokens(row, units * unit, computed)
            chain = self.index.keep_end(row, keys, units, waiting.root, behind, waiting.came_from, known)
        else:
            units = int(state.settled[row]) // unit
            chain = self.index.remember(row, self._keys(row, waiting, units), units, known)
            if units:
                self.index.leaves.rank(chain)
        if len(chain):
            self._tell_kept(waiting, chain.item(-1))
        if to_tier:
            self.stores.offer(chain)

    def _tell_kept(self, waiting: Waiting, end: int) -> None:
        """For routers: how much of its tokens a later request can go on behind."""
        nodes = self.index.nodes
        if nodes.is_boundary[end] or not self.index.coverage.has_boundaries:
            self._tell(What.KEPT, waiting.request, nodes.key[end].hex(), tokens=nodes.tokens.item(end))

    def _keys(self, row: int, ticket: Waiting, units: int) -> list[bytes]:
        """A request's keys, at least for its first `units` units."""
        known, unit = len(ticket.keys), self.index.unit
        if known < units:
            assert ticket.behind is not None, "whoever has a row was named"
            tokens = self.rows.tokens(row, known * unit, units * unit)
            more, ticket.behind = extend(ticket.behind, scope_of(ticket.root), tokens, unit)
            ticket.keys += more
        return ticket.keys
