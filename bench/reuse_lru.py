"""The LRU column of bench/reuse.py: a scheduler with chunked prefill in front of one list of pages of all kinds.

Every page that is computed is cached, also those that left a window; a model with states keeps one at each multiple of
`state_block` tokens. Requests are let in first come, first served, or by the longest prefix in the cache; one that does
not fit holds up those after it. Running requests go first and get a token each; if pages are short, the youngest is
preempted and computed again. A page can be shared from the moment that it is scheduled, a state when its step is done.

A hit ends at a page: before the first missing page of kinds that grow, with the whole tail of a window, and at a state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from quire.core.request import Tokens
from quire.core.units import ceil_div
from quire.plan.plan import KindPlan
from reuse_drive import Batch
from reuse_pages import KINDS, PageCache
from reuse_pools import BATCH_TOKENS, MOST_REQUESTS, PAGE, page_names

IN_BATCH_PAGES, MOST_SORTED = 2, 128
"""By prefix, as SGLang does it: of waiting requests that begin with the same 32 tokens, none of them cached, one goes
first; and where more wait than this, they are not sorted."""


@dataclass(slots=True, eq=False)
class Row:
    place: int
    names: list[int]
    """Of its whole pages, prompt and answer."""
    prompt: int
    outputs: int
    computed: int = 0
    generated: int = 0
    first: list[int] = field(default_factory=list)
    """By kind: the first page that it holds; the last is that of its last whole page."""
    is_new: bool = True

    @property
    def wanted(self) -> int:
        return self.prompt + self.generated - self.computed


class LruServer:
    def __init__(
        self,
        kinds: Sequence[KindPlan],
        capacity_bytes: float,
        state_block: int = 0,
        by_prefix: bool = False,
        budget: int = BATCH_TOKENS,
    ) -> None:
        """`budget`: tokens of a step."""
        self.states = [index for index, kind in enumerate(kinds) if kind.kind.kind == "state"]
        sizes = [int(PAGE * kind.token_bytes) or kind.fixed_bytes for kind in kinds]
        self.cache = PageCache(sizes, capacity_bytes)
        self.kinds = [kind.kind for kind in kinds]
        self.growing = [index for index, kind in enumerate(kinds) if kind.kind.grows]
        self.tails = [i for i in range(len(kinds)) if i not in self.states and i not in self.growing]
        self.paged = [*self.growing, *self.tails]
        self.page_bytes = sum(sizes[kind] for kind in self.paged)
        self.state_bytes = sum(sizes[kind] for kind in self.states)
        self.state_block, self.by_prefix, self.budget = state_block, by_prefix, budget
        assert bool(state_block) == bool(self.states), "states are kept at multiples of some block"
        assert state_block % PAGE == 0, "and that is so many pages"
        self.waiting: deque[Row] = deque()
        self.running: list[Row] = []
        self.preemptions = 0
        self._rows: dict[int, Row] = {}
        self._hits: dict[int, int] = {}

    # ── what bench/reuse_drive.py asks ────────────────────────────────────

    def submit(self, place: int, known: Tokens, prompt_tokens: int) -> None:
        row = Row(place, page_names(known), prompt_tokens, len(known) - prompt_tokens)
        self._rows[place] = row
        self.waiting.append(row)

    def schedule(self) -> Batch | None:
        budget, before = self.budget, self.preemptions
        granted: list[tuple[Row, int, int]] = []
        for row in list(self.running):
            if budget and row in self.running:
                start, tokens = row.computed, self._grow(row, min(row.wanted, budget))
                granted.append((row, start, tokens))
                budget -= tokens
        if before == self.preemptions:
            granted += self._admit(budget)
        granted = [one for one in granted if one[2]]
        if not granted:
            return None
        samples = sum(not row.wanted for row, _, _ in granted)
        places, starts, counts = zip(*((row.place, start, tokens) for row, start, tokens in granted), strict=True)
        return Batch(places, starts, counts, samples)

    def complete(self, batch: Batch) -> Sequence[int]:
        ended = []
        for place, start in zip(batch.places, batch.starts, strict=True):
            row = self._rows[place]
            self._keep_states(row, start)
            self._let_windows_go(row)
            if not row.wanted:
                row.generated += 1
                if row.generated == row.outputs:
                    self._leave(row)
                    ended.append(place)
        return ended

    def hits(self) -> dict[int, int]:
        return self._hits

    # ── pages of a row ────────────────────────────────────────────────────

    def _grow(self, row: Row, tokens: int) -> int:
        """Takes pages for so many more tokens, at the expense of younger rows; fewer where it runs alone and must.
        Returns how many tokens it may compute: none if it had to give way itself."""
        while not self._try(row, tokens):
            youngest = self.running[-1]
            if youngest is not row:
                self._preempt(youngest)
            elif len(self.running) > 1:
                self._preempt(row)
                return 0
            else:
                tokens //= 2
                assert tokens, "the plan accepted the pool for this request alone"
        return tokens

    def _try(self, row: Row, tokens: int) -> bool:
        begin, end = row.computed, row.computed + tokens
        was_cut, is_cut = begin % PAGE > 0, end % PAGE > 0
        if was_cut:
            self.cache.give(self.page_bytes)
        if is_cut and not self.cache.take(self.page_bytes):
            self.cache.used_bytes += was_cut * self.page_bytes
            return False
        names = row.names[begin // PAGE : end // PAGE]
        if not self.cache.hold(name * KINDS + kind for name in names for kind in self.paged):
            self.cache.used_bytes += (was_cut - is_cut) * self.page_bytes
            return False
        row.computed = end
        return True

    def _keys(self, row: Row) -> Iterator[int]:
        """Of the pages that it holds, the last first."""
        for page in range(row.computed // PAGE - 1, -1, -1):
            for kind in self.paged:
                if page >= row.first[kind]:
                    yield row.names[page] * KINDS + kind

    def _keep_states(self, row: Row, start: int) -> None:
        if self.states:
            block = self.state_block
            for end in range((start // block + 1) * block, row.computed + 1, block):
                for kind in self.states:
                    self.cache.keep(row.names[end // PAGE - 1] * KINDS + kind)

    def _let_windows_go(self, row: Row) -> None:
        for kind in self.tails:
            first = min(self._first_needed(kind, row.computed), row.computed // PAGE)
            self.cache.release(row.names[page] * KINDS + kind for page in range(row.first[kind], first))
            row.first[kind] = max(first, row.first[kind])

    def _first_needed(self, kind: int, tokens: int) -> int:
        (run,) = self.kinds[kind].hit_needs(tokens)
        return run[0] // PAGE

    def _vacate(self, row: Row) -> None:
        self.running.remove(row)
        self.cache.release(list(self._keys(row)))
        self.cache.give(self.state_bytes + (row.computed % PAGE > 0) * self.page_bytes)

    def _leave(self, row: Row) -> None:
        self._vacate(row)
        del self._rows[row.place]

    def _preempt(self, row: Row) -> None:
        self._vacate(row)
        row.computed = 0
        self.preemptions += 1
        self.waiting.appendleft(row)

    # ── admission ─────────────────────────────────────────────────────────

    def _admit(self, budget: int) -> list[tuple[Row, int, int]]:
        granted: list[tuple[Row, int, int]] = []
        if self.by_prefix and len(self.waiting) <= MOST_SORTED and budget and len(self.running) < MOST_REQUESTS:
            self._sort()
        while self.waiting and budget and len(self.running) < MOST_REQUESTS:
            row = self.waiting[0]
            hit = self.find(row)
            if not self._enter(row, hit, budget):
                break
            self.waiting.popleft()
            self.running.append(row)
            tokens = self._grow(row, min(row.wanted, budget))
            if not tokens:
                break
            self._hits.setdefault(row.place, hit)
            granted.append((row, hit, tokens))
            budget -= tokens
        return granted

    def _enter(self, row: Row, hit: int, budget: int) -> bool:
        """Holds the pages of the hit and a state; only if the whole prompt has room, unless nobody else runs."""
        row.first = [self._first_needed(kind, hit) if kind in self.tails else 0 for kind in range(len(self.kinds))]
        row.computed = hit
        keys = list(self._keys(row))
        shared = sum(self.cache.page_bytes[key % KINDS] for key in keys if key in self.cache.held)
        if self.running and self._peak_bytes(row, hit, budget) - shared > self.cache.room_bytes:
            row.computed = 0
            return False
        for kind in self.states:
            if hit:
                self.cache.keep(row.names[hit // PAGE - 1] * KINDS + kind)
        is_held = self.cache.hold(keys) and self.cache.take(self.state_bytes)
        assert is_held, "there was room for more"
        return True

    def _peak_bytes(self, row: Row, hit: int, budget: int) -> int:
        """What it takes to compute the prompt from the hit on, in chunks of the budget."""
        pages = ceil_div(row.prompt, PAGE)
        size = self.state_bytes + sum(self.cache.page_bytes[kind] * pages for kind in self.growing)
        for kind in self.tails:
            most = max(pages - self._first_needed(kind, start) for start in (hit, max(hit, row.prompt - budget)))
            chunk = ceil_div(min(budget, row.prompt - hit), PAGE) + 1
            width = max(start // PAGE - self._first_needed(kind, start) for start in (hit, row.prompt - 1))
            size += self.cache.page_bytes[kind] * min(most, width + chunk)
        return size

    def _sort(self) -> None:
        """The longest cached prefix first; of those that begin alike and find nothing, all but the first come last."""
        begun: set[int] = set()
        keyed = []
        for row in self.waiting:
            hit = self.find(row)
            is_alike = False
            if hit <= IN_BATCH_PAGES * PAGE < row.prompt:
                name = row.names[IN_BATCH_PAGES - 1]
                is_alike = name in begun
                begun.add(name)
            keyed.append((is_alike, -hit, row))
        self.waiting = deque(row for _, _, row in sorted(keyed, key=lambda one: one[:2]))

    def find(self, row: Row) -> int:
        """Tokens of its prompt with which it can begin. Changes nothing."""
        held, idle, names = self.cache.held, self.cache.idle, row.names
        most = (row.prompt + row.generated - 1) // PAGE
        end = most
        for kind in self.growing:
            keys = (names[page] * KINDS + kind for page in range(end))
            end = next((page for page, key in enumerate(keys) if key not in held and key not in idle), end)
        while end:
            before = end
            end = self._state_before(row, end)
            for kind in self.tails:
                end = self._tail_before(row, kind, end)
            if end == before:
                break
        return end * PAGE

    def _state_before(self, row: Row, end: int) -> int:
        """The greatest number of pages up to `end` behind which every state is kept; `end` for models without."""
        if not self.states:
            return end
        step = self.state_block // PAGE
        for pages in range(end // step * step, 0, -step):
            if all(row.names[pages - 1] * KINDS + kind in self.cache for kind in self.states):
                return pages
        return 0

    def _tail_before(self, row: Row, kind: int, end: int) -> int:
        """The greatest number of pages up to `end` whose tail is there whole."""
        while end:
            first, page = self._first_needed(kind, end * PAGE), end - 1
            while page >= first and row.names[page] * KINDS + kind in self.cache:
                page -= 1
            if page < first:
                break
            end = page
        return end
