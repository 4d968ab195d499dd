"""Known bugs, planted on purpose: a checker that does not find them is not worth running.

Each replaces one function of the engine, its memory or the bound for as long as it is planted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from quire.cache import compaction
from quire.cache.coverage import Coverage
from quire.cache.memory import StageMemory
from quire.cache.pool import Pool
from quire.cache.tables import Table
from quire.engine.engine import Engine
from quire.plan import bound
from quire.scheduler import reuse, room
from quire.scheduler.drafts import Drafts
from quire.scheduler.loads import Loads
from quire.scheduler.room import Room
from quire.scheduler.rows import NO_TOKEN, Rows
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.stores import Stores

Original = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Mutation:
    description: str
    owner: object
    function: str
    make: Callable[[Original], Original]
    """From the right function to the wrong one."""


def planted(name: str) -> AbstractContextManager[None]:
    """The bug is there inside, and gone afterwards."""
    mutation = MUTATIONS[name]
    return _replaced(mutation.owner, mutation.function, mutation.make)


@contextmanager
def _replaced(owner: object, function: str, make: Callable[[Original], Original]) -> Iterator[None]:
    original = getattr(owner, function)
    setattr(owner, function, make(original))
    try:
        yield
    finally:
        setattr(owner, function, original)


# ── the bound ─────────────────────────────────────────────────────────────


def _without_reserved(sheets_needed: Original) -> Original:
    return lambda kinds, pages, *_reserved: sheets_needed(kinds, pages)


def _one_short(minimum: Original) -> Original:
    return lambda *arguments: max(1, minimum(*arguments) - 1)


def _one_too_many(minimum: Original) -> Original:
    return lambda *arguments: minimum(*arguments) + 1


def _always(admits: Original) -> Original:
    del admits
    return lambda plan, length: length <= 2 * plan.max_length


# ── pages ─────────────────────────────────────────────────────────────────


def _one_token_further(cut: Original) -> Original:
    return lambda self, rows, settled: cut(self, rows, settled + 1)


def _by_computed(apply: Original) -> Original:
    def wrong(self: Scheduler, result: Any) -> Any:
        ended = apply(self, result)
        rows = np.array(sorted(self.tickets), dtype=np.int64)
        for memory in self.memories:
            memory.settle(rows, self.rows.computed[rows])
        return ended

    return wrong


def _nothing(original: Original) -> Original:
    del original
    return lambda *_arguments, **_options: None


def _twice(hold: Original) -> Original:
    def wrong(self: Pool, kind: int, pages: Any, holder: Any) -> None:
        hold(self, kind, pages, holder)
        hold(self, kind, pages, holder)

    return wrong


def _kept(preempt: Original) -> Original:
    def wrong(self: Scheduler, *arguments: Any) -> None:
        with _replaced(StageMemory, "release", _nothing):
            preempt(self, *arguments)

    return wrong


def _no_moves(compact: Original) -> Original:
    del compact
    return lambda *_arguments: []


def _nothing_fixed(fixed: Original) -> Original:
    return lambda shelf: np.zeros_like(fixed(shelf))


# ── steps and results ─────────────────────────────────────────────────────


def _without_copies(launch: Original) -> Original:
    return lambda self, *arguments: replace(launch(self, *arguments), copies=())


def _every_ninth_lost(apply: Original) -> Original:
    def wrong(self: Scheduler, result: Any) -> Any:
        if result.number % 9 == 8:
            self.flying.pop(0)
            return []
        return apply(self, result)

    return wrong


def _still_expected(append: Original) -> Original:
    def wrong(self: Rows, rows: Any, tokens: Any) -> None:
        append(self, rows, tokens)
        self.expected[rows] += 1

    return wrong


def _same_epoch(leave: Original) -> Original:
    def wrong(self: Rows, row: int) -> Any:
        outputs = leave(self, row)
        self.epoch[row] -= 1
        return outputs

    return wrong


# ── order and reuse ───────────────────────────────────────────────────────


def _by_claim_alone(order: Original) -> Original:
    def wrong(self: Scheduler) -> Any:
        order(self)
        return np.array(sorted(self.tickets, key=lambda row: self.tickets[row].claim), dtype=np.int64)

    return wrong


def _without_scope(root_key: Original) -> Original:
    return lambda fields: root_key(fields[:1])


def _whole_chain(usable: Original) -> Original:
    return lambda self, chain, boundaries: usable(self, chain, boundaries) | True


def _beyond_the_limit(needs: Original) -> Original:
    def wrong(self: Room, *arguments: Any) -> Any:
        self.rows.limit += self.plan.lookahead
        try:
            return needs(self, *arguments)
        finally:
            self.rows.limit -= self.plan.lookahead

    return wrong


def _without_ahead(needs: Original) -> Original:
    return lambda self, rows, settled, new, ahead: needs(self, rows, settled, new, ahead * 0)


# ── states and loads ──────────────────────────────────────────────────────


def _without_clears(launch: Original) -> Original:
    return lambda self, *arguments: replace(launch(self, *arguments), clears=())


def _from_elsewhere(part: Original) -> Original:
    def wrong(self: StageMemory, kind: int, row: int) -> Any:
        source, target = part(self, kind, row)
        return (source + len(source)) % len(self.pool.shelves[kind].holders), target

    return wrong


def _before_copies(take_due: Original) -> Original:
    def read_at_once(self: Any) -> Any:
        return tuple(replace(store, after=0) for store in take_due(self))

    return read_at_once


def _beside(pages: Original) -> Original:
    def next_to_it(self: Any, span: Any, chain: Any) -> Any:
        shelf = self._index.memories[span.stage].pool.shelves[span.kind]
        return (pages(self, span, chain) + 1) % len(shelf.holders)

    return next_to_it


def _without_loads(launch: Original) -> Original:
    return lambda self, *arguments: replace(launch(self, *arguments), loads=())


def _without_deadlines(over: Original) -> Original:
    return lambda self, _now: over(self, -1.0)


def _always_done(over: Original) -> Original:
    done = partial(replace, reason="", is_staged=True, is_over=True, again=None)
    return lambda self, now: map(done, over(self, now))


# ── drafts ────────────────────────────────────────────────────────────────


def _all_true(accept: Original) -> Original:
    def wrong(self: Drafts, step: Any, *arguments: Any) -> Any:
        _, last = accept(self, step, *arguments)
        return step.counts, last

    return wrong


def _past_stops(accept: Original) -> Original:
    def wrong(self: Drafts, *arguments: Any) -> Any:
        stops = self._rows.stops.copy()
        self._rows.stops[:] = NO_TOKEN
        taken = accept(self, *arguments)
        self._rows.stops[:] = stops
        return taken

    return wrong


def _over_budget(add: Original) -> Original:
    def wrong(self: Drafts, *arguments: Any) -> Any:
        self._batch_tokens += self._lookahead
        added = add(self, *arguments)
        self._batch_tokens -= self._lookahead
        return added

    return wrong


MUTATIONS: dict[str, Mutation] = {
    "reserved-page-forgotten": Mutation(
        "the bound does not count the pages that a backend keeps for itself", bound, "sheets_needed", _without_reserved
    ),
    "bound-one-short": Mutation("the bound asks for one sheet less than is needed", bound, "minimum", _one_short),
    "bound-one-too-many": Mutation("the bound asks for one sheet more than is needed", bound, "minimum", _one_too_many),
    "never-fits-waits": Mutation("a request that cannot run is accepted and waits", bound, "admits", _always),
    "freed-too-early": Mutation(
        "pages go back one token before they leave the live set", Table, "cut", _one_token_further
    ),
    "freed-in-flight": Mutation(
        "pages go back when tokens are scheduled, not when they settle", Scheduler, "apply", _by_computed
    ),
    "settle-missed": Mutation("pages that left the live set are never given back", StageMemory, "settle", _nothing),
    "hold-counted-twice": Mutation("one more holder counts as two", Pool, "hold", _twice),
    "preempted-pages-kept": Mutation("a preempted request does not give its pages back", Scheduler, "_preempt", _kept),
    "compaction-off": Mutation("nothing is ever compacted", room, "compact", _no_moves),
    "pinned-page-moved": Mutation("compaction moves pages while they are read", compaction, "_fixed", _nothing_fixed),
    "copies-dropped": Mutation("pages move in the tables, their bytes do not", Scheduler, "_launch", _without_copies),
    "completion-lost": Mutation("every ninth result is thrown away", Scheduler, "apply", _every_ninth_lost),
    "pending-not-counted-down": Mutation("a token that came is still expected", Rows, "append", _still_expected),
    "stale-result-applied": Mutation(
        "a result for an earlier tenant of a row is given to the next", Rows, "leave", _same_epoch
    ),
    "elder-not-first": Mutation("priority goes before age, for the elder too", Scheduler, "order", _by_claim_alone),
    "elder-waits-for-a-row": Mutation("the elder takes no row from the others", Scheduler, "_admit_elder", _nothing),
    "scope-left-out": Mutation("prefixes are found across scopes", reuse, "root_key", _without_scope),
    "tail-not-checked": Mutation("a hit is taken without asking windows and states", Coverage, "usable", _whole_chain),
    "lookahead-not-clipped": Mutation("lookahead goes beyond a request's limit", Room, "needs", _beyond_the_limit),
    "lookahead-forgotten": Mutation("drafts get no pages", StageMemory, "needs", _without_ahead),
    "drafts-settle": Mutation("drafts that did not come true settle as well", Drafts, "accept", _all_true),
    "drafts-overtaken": Mutation("a row goes on before its drafts came back", Drafts, "waiting", _nothing),
    "drafts-over-budget": Mutation("drafts make a step longer than planned for", Drafts, "add", _over_budget),
    "drafts-past-the-stop": Mutation("drafts behind a stop token are put out", Drafts, "accept", _past_stops),
    "state-not-moved": Mutation(
        "drafts came true, and the state stays where it was before them", StageMemory, "move_states", _nothing
    ),
    "cached-pages-kept": Mutation("what the cache forgets is not given back", StageMemory, "forget", _nothing),
    "state-not-cleared": Mutation(
        "a fresh state starts from what lay in its page", Scheduler, "_launch", _without_clears
    ),
    "wrong-state-restored": Mutation(
        "a hit goes on from the page beside its own", StageMemory, "part", _from_elsewhere
    ),
    "load-not-copied": Mutation("what a tier staged stays there", Scheduler, "_launch", _without_loads),
    "store-too-early": Mutation(
        "what goes out to a tier is read before the copies that bring it", Stores, "take_due", _before_copies
    ),
    "store-of-a-neighbour": Mutation("a record is filled from the pages beside its own", Stores, "_pages", _beside),
    "load-waits-for-ever": Mutation("loads have no deadline", Loads, "over", _without_deadlines),
    "failed-load-used": Mutation("a load that failed or is late counts as done", Loads, "over", _always_done),
    "deadline-missed": Mutation("nobody looks at deadlines", Engine, "_expire", _nothing),
}
