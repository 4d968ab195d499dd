"""Planted bugs of prefix reuse: what is found, what is kept, and where requests start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.cache import compaction
from quire.cache.memory import StageMemory
from quire.check.mutations.base import Mutation, Original, always, nothing
from quire.prefix.coverage import Coverage
from quire.prefix.index import PrefixIndex
from quire.scheduler import reuse
from quire.scheduler.next_step import NextStep
from quire.scheduler.reuse import Reuse


def _without_scope(root_key: Original) -> Original:
    return lambda fields: root_key(fields[:1])


def _whole_chain(usable: Original) -> Original:
    return lambda self, chain, boundaries: usable(self, chain, boundaries) | True


def _without_clears(launch: Original) -> Original:
    return lambda self, *arguments, **computed: replace(launch(self, *arguments, **computed), clears=())


def _from_elsewhere(part: Original) -> Original:
    def wrong(self: StageMemory, kind: int, row: int, boundary: int) -> Any:
        source, target = part(self, kind, row, boundary)
        return (source + len(source)) % len(self.pool.shelves[kind].holders), target

    return wrong


def _one_unit_short(find: Original) -> Original:
    def wrong(self: PrefixIndex, keys: Any, root: bytes, tokens: Any, most_tokens: int | None = None) -> Any:
        most = len(tokens) - 1 if most_tokens is None else most_tokens
        return find(self, keys, root, tokens, max(0, most - self.unit))

    return wrong


def _but_the_last(usable: Original) -> Original:
    def wrong(self: Coverage, chain: Any, boundaries: Any) -> Any:
        found = usable(self, chain, boundaries)
        found[-1:] &= len(chain) < 2
        return found

    return wrong


def _whole_units(keep_end: Original) -> Original:
    del keep_end

    def wrong(
        self: PrefixIndex,
        row: int,
        keys: Any,
        units: int,
        root: bytes,
        behind: Any,
        came_from: Any,
        known: Any,
        line: int,
    ) -> Any:
        del root, behind, came_from
        chain = self.remember(row, keys, units, known, line)
        if len(chain):
            self.settle(chain)
        return chain

    return wrong


def _everything(drop_scope: Original) -> Original:
    del drop_scope
    return lambda self, _scope: self.drop()


def _without_cache(apply: Original) -> Original:
    def wrong(memory: StageMemory, moves: Any) -> None:
        kept, memory.kept = memory.kept, []
        try:
            apply(memory, moves)
        finally:
            memory.kept = kept

    return wrong


REUSE: dict[str, Mutation] = {
    "scope-left-out": Mutation("prefixes are found across scopes", reuse, "root_key", _without_scope),
    "tail-not-checked": Mutation("a hit is taken without asking windows and states", Coverage, "usable", _whole_chain),
    "state-not-moved": Mutation(
        "drafts were accepted, and the state stays as it was before them", StageMemory, "move_states", nothing
    ),
    "state-not-cleared": Mutation(
        "a fresh state starts from what lay in its page", NextStep, "launch", _without_clears
    ),
    "wrong-state-restored": Mutation(
        "a hit continues from the page next to its own", StageMemory, "part", _from_elsewhere
    ),
    "hit-one-unit-short": Mutation("a hit ends a unit before it could", PrefixIndex, "find", _one_unit_short),
    "end-of-turn-overlooked": Mutation("no hit ends between two units", PrefixIndex, "_find_end", nothing),
    "last-boundary-refused": Mutation("no hit ends at the end of a chain", Coverage, "usable", _but_the_last),
    "copies-refused": Mutation(
        "there is never room for copies of what is written on", Coverage, "has_free_pages", always(False)
    ),
    "end-of-turn-not-kept": Mutation(
        "of a request that leaves only whole units are kept", PrefixIndex, "keep_end", _whole_units
    ),
    "end-of-prompt-not-kept": Mutation("nothing is kept where prompts end or part", Reuse, "_keep_boundary", nothing),
    "scope-not-dropped": Mutation("the cache of a scope stays when it is dropped", PrefixIndex, "drop_scope", nothing),
    "all-scopes-dropped": Mutation(
        "the cache of all scopes goes when one is dropped", PrefixIndex, "drop_scope", _everything
    ),
    "cached-pages-not-moved": Mutation(
        "compaction moves pages, and the cache looks for them where they were", compaction, "_apply", _without_cache
    ),
}
