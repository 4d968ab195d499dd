"""Which prefixes can be gone on from: proved from the definition of the attention and the pages that the index holds.

    boundary 11, pages of 4       full      pages 0 1 2     everything before it
                                  window 6    page  1 2     tokens 6 … 10: what token 11 sees of the past
                                  state             ◆       a copy taken exactly there

Names of units come from `prefix/keys.py`; nothing here asks `prefix/index.py` or `prefix/coverage.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from quire.cache.pool import Holder, Pages
from quire.check import state
from quire.check.definitions import Ints, seen
from quire.core.request import Request, Tokens
from quire.core.units import ceil_div
from quire.kinds import State
from quire.plan.plan import KindPlan
from quire.prefix.keys import end_key, keys_of
from quire.scheduler.scheduler import Scheduler


def find_known(scheduler: Scheduler, name: str) -> int | None:
    """Prompt and outputs so far of a request; None: it has ended."""
    is_here = name in scheduler.rows.row_of or scheduler.queue.find(name) is not None
    return state.known_tokens(scheduler, name) if is_here else None


@dataclass(frozen=True, slots=True, eq=False)
class Boundary:
    """A place in a request's tokens, and the nodes that lead there: one per unit, and one for the tokens after them."""

    tokens: int
    path: Ints


class Prefixes:
    def __init__(self, scheduler: Scheduler, tokens_of: Callable[[str], Tokens]) -> None:
        """`tokens_of`: prompt and outputs so far of a request, by its name."""
        self.scheduler, self.unit = scheduler, scheduler.plan.reuse_unit_tokens
        self.is_disabled = bool(scheduler.plan.no_reuse_because)
        stages = [stage for stage in scheduler.plan.stages if stage.kinds]
        self._kinds = [(s, k, kind) for s, stage in enumerate(stages) for k, kind in enumerate(stage.kinds)]
        self.tokens_of = tokens_of
        self._keys: dict[str, list[bytes]] = {}

    def keys(self, request: Request) -> list[bytes]:
        """Of the whole units of its tokens."""
        known, tokens = self._keys.get(request.name, []), self.tokens_of(request.name)
        if len(known) < len(tokens) // self.unit:
            known = self._keys[request.name] = keys_of(self._root(request), tokens, self.unit)
        return known[: len(tokens) // self.unit]

    def forget(self, name: str) -> None:
        """Another request will have this name."""
        self._keys.pop(name, None)

    def _root(self, request: Request) -> bytes:
        return state.root(self.scheduler, request.scope)

    def depth(self, request: Request) -> int:
        """How many of its units the index has, from the first on."""
        by_key = state.nodes(self.scheduler).by_key
        own = self.keys(request)
        return next((place for place, key in enumerate(own) if key not in by_key), len(own))

    def shared_units(self, request: Request, other: Request) -> int:
        """Whole units of another one's prompt, all but its last token, that a request begins with."""
        most = min(len(self.keys(request)), (len(other.prompt) - 1) // self.unit)
        pairs = zip(self.keys(request)[:most], self.keys(other)[:most], strict=True)
        return next((place for place, (one, two) in enumerate(pairs) if one != two), most)

    # ── what can be proved ────────────────────────────────────────────────

    def boundaries(self, request: Request, most_tokens: int) -> Iterator[Boundary]:
        """Those up to `most_tokens` that every kind can prove, the greatest first."""
        for boundary in self._nodes_along(request, most_tokens):
            if self.is_proved(boundary):
                yield boundary

    def boundary(self, request: Request, tokens: int) -> Boundary | None:
        """The one at so many tokens; None: the index has no node there."""
        return next((one for one in self._nodes_along(request, tokens) if one.tokens == tokens), None)

    def _nodes_along(self, request: Request, most_tokens: int) -> list[Boundary]:
        own, tokens = state.nodes(self.scheduler), self.tokens_of(request.name)
        keys, depth = self.keys(request), self.depth(request)
        path = np.array([own.by_key[key] for key in keys[:depth]], dtype=np.int64)
        found = [Boundary((place + 1) * self.unit, path[: place + 1]) for place in range(depth)]
        for key, node in own.by_key.items():
            end = int(own.tokens[node])
            units, more = divmod(end, self.unit)
            if more and end <= most_tokens and units <= depth:
                before = keys[units - 1] if units else self._root(request)
                if key == end_key(before, tokens[units * self.unit : end]):
                    found.append(Boundary(end, np.append(path[:units], node)))
        return sorted((one for one in found if one.tokens <= most_tokens), key=lambda one: -one.tokens)

    def is_proved(self, boundary: Boundary) -> bool:
        return all(self._is_covered(stage, kind, plan, boundary) for stage, kind, plan in self._kinds)

    def _is_covered(self, stage: int, kind: int, plan: KindPlan, boundary: Boundary) -> bool:
        """What the next token sees of the past is there, and the page that it goes on writing."""
        present = state.present(self.scheduler, stage, kind)
        if isinstance(plan.kind, State):
            return bool(present[boundary.path[-1], 0])
        end, size, each = boundary.tokens, plan.page_tokens, present.shape[1]
        runs = [(begin, min(stop, end)) for begin, stop in seen(plan.kind, end, end + 1)]
        pages = np.concatenate(
            [np.arange(begin // size, ceil_div(stop, size)) for begin, stop in runs if begin < stop]
            + [np.arange(end // size, ceil_div(end, size))]
        )
        return bool(present[boundary.path[pages // each], pages % each].all())

    # ── what can be gone on from ──────────────────────────────────────────

    def has_room(self, boundary: Boundary) -> bool:
        """Whether a request that starts there gets copies of the pages it writes on, or can take over the cache's."""
        if self.has_copies(boundary.tokens):
            return True
        is_leased = state.ends_a_lease(self.scheduler, int(boundary.path[-1]))
        written = self._written_on(boundary.tokens)
        return not is_leased and not any(self._is_held(*one, boundary) for one in written)

    def has_copies(self, tokens: int) -> bool:
        """Whether pages are free for what a request that starts there writes on."""
        written, stages = self._written_on(tokens), {stage for stage, _, _ in self._kinds}
        return all(state.can_take(self.scheduler, stage, self._copies(stage, written)) for stage in stages)

    def _written_on(self, tokens: int) -> list[tuple[int, int, KindPlan]]:
        return [one for one in self._kinds if isinstance(one[2].kind, State) or tokens % one[2].page_tokens]

    def _copies(self, stage: int, written: list[tuple[int, int, KindPlan]]) -> list[int]:
        """Pages of each kind of a stage."""
        own = {kind: plan.groups for number, kind, plan in written if number == stage}
        return [own.get(kind, 0) for number, kind, _ in self._kinds if number == stage]

    def _is_held(self, stage: int, kind: int, plan: KindPlan, boundary: Boundary) -> bool:
        """Whether a request, a reader or another place in the cache holds the page that would be written on."""
        pages = self._last_page(stage, kind, plan, boundary)
        by = ((Holder.REQUEST, 0), (Holder.PIN, 0), (Holder.CACHE, 1))
        return any((state.holders(self.scheduler, stage, kind, one, pages) > most).any() for one, most in by)

    def _last_page(self, stage: int, kind: int, plan: KindPlan, boundary: Boundary) -> Pages:
        kept = state.kept_pages(self.scheduler, stage, kind)
        page = 0 if isinstance(plan.kind, State) else (boundary.tokens - 1) // plan.page_tokens % kept.shape[1]
        return np.asarray(kept[boundary.path[-1], page], dtype=np.int64)
