"""Planted bugs of next turns: warm work in the way of requests, boundaries kept elsewhere, the wrong things evicted."""

from __future__ import annotations

from quire.cache.pool import NOT_CACHED, ONE, Holder, Pages, Pool
from quire.check.mutations.base import Mutation, Original, nothing
from quire.core.request import Tokens
from quire.prefix import next_turn
from quire.prefix.index import PrefixIndex
from quire.prefix.marks import Marks
from quire.prefix.nodes import Chain
from quire.warm import actions
from quire.warm.work import Warm, WarmWork


def _whatever_runs(is_idle: Original) -> Original:
    del is_idle
    return lambda self: self._chunk is None and not self.engine.scheduler.flying


def _all_at_once(span: Original) -> Original:
    def wrong(self: WarmWork, job: Warm) -> tuple[int, int]:
        begin, end = span(self, job)
        return begin, max(end, min(len(job.tokens), begin + self.engine.scheduler.plan.batch_tokens))

    return wrong


def _one_early(enter: Original) -> Original:
    def wrong(self: Marks, row: int, units: list[int], points: tuple[int, ...], computed: int) -> None:
        enter(self, row, units, [point - 1 for point in points], computed)

    return wrong


def _but_for_the_cache(is_shared: Original) -> Original:
    del is_shared

    def wrong(self: Pool, kind: int, pages: Pages) -> bool:
        return bool((self.shelves[kind].holders[pages] & NOT_CACHED > ONE[Holder.REQUEST]).any())

    return wrong


def _all_of_it(demote: Original) -> Original:
    return lambda index, chain, _recurs: demote(index, chain, 0)


def _nothing_of_it(demote: Original) -> Original:
    del demote
    return lambda *_arguments: 0


def _the_last_too(drop_between: Original) -> Original:
    def wrong(index: PrefixIndex, root: bytes, tokens: Tokens, begin: int) -> None:
        drop_between(index, root, tokens, begin)
        nodes = index.nodes
        last: Chain = nodes.leaves()[nodes.is_boundary[nodes.leaves()] > 0]
        for node in last[(nodes.tokens[last] == len(tokens)) & (nodes.leased[last] == 0)].tolist():
            index.boundaries.drop(node)

    return wrong


def _leased_too(drop_between: Original) -> Original:
    def wrong(index: PrefixIndex, root: bytes, tokens: Tokens, begin: int) -> None:
        ends = index.nodes.lease_ends.copy()
        index.nodes.lease_ends[:] = 0
        drop_between(index, root, tokens, begin)
        index.nodes.lease_ends[:] = ends

    return wrong


WARM: dict[str, Mutation] = {
    "warm-while-others-run": Mutation(
        "warm work begins although requests run or wait", WarmWork, "is_idle", _whatever_runs
    ),
    "warm-gives-no-way": Mutation("warm work stays when a request arrives", WarmWork, "give_way", nothing),
    "warm-chunk-too-long": Mutation("warm work computes as much as a step may have", WarmWork, "_span", _all_at_once),
    "warm-end-dropped": Mutation(
        "warm work drops the boundary that it has come to", actions, "drop_between", _the_last_too
    ),
    "point-not-kept": Mutation(
        "no boundary is kept where the next turn goes on", Marks, "keep_point", lambda _: lambda *_arguments: True
    ),
    "point-one-early": Mutation(
        "the boundary is kept one token before the next turn goes on", Marks, "enter", _one_early
    ),
    "page-of-two-places-taken-over": Mutation(
        "a request takes over a page that two places of the cache hold", Pool, "is_shared", _but_for_the_cache
    ),
    "beyond-stays": Mutation(
        "what lies beyond the next turn's beginning is kept as long as others", next_turn, "_demote", _nothing_of_it
    ),
    "recurring-evicted-first": Mutation(
        "what the next turn begins with is evicted first, too", next_turn, "_demote", _all_of_it
    ),
    "warm-lease-dropped": Mutation(
        "a chunk of warm work drops a leased boundary before it", actions, "drop_between", _leased_too
    ),
}
