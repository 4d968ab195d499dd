"""Planted bugs of forks and branches: what is kept for them, what is copied, who may fork, and what is accepted."""

from __future__ import annotations

from typing import Any

from quire.check.mutations.base import Mutation, Original, nothing, replaced
from quire.forks.forks import Forks
from quire.plan import bound
from quire.prefix.points import Points
from quire.scheduler.reuse import Reuse
from quire.scheduler.scheduler import Scheduler


def _in_place(keep: Original) -> Original:
    del keep

    def wrong(self: Points, row: int, turn: Any, tokens: int, computed: int) -> list[Any]:
        del tokens, computed
        self._index.keep_point(row, turn)
        return []

    return wrong


def _without_copies(branch_off: Original) -> Original:
    def wrong(self: Reuse, row: int, ticket: Any, tokens: int) -> None:
        with replaced(type(self._next_step), "copy", nothing):
            branch_off(self, row, ticket, tokens)

    return wrong


def _one_further(branch_off: Original) -> Original:
    return lambda self, name, at: branch_off(self, name, at + 1)


def _of_anyone(known: Original) -> Original:
    def wrong(self: Forks, name: str, tenant: str, scope: str) -> Any:
        one = self._streams.get(name)
        owner = (tenant, scope) if one is None else (one.request.tenant, one.request.scope)
        return known(self, name, *owner)

    return wrong


def _up_to_the_end(tokens: Original) -> Original:
    def wrong(self: Forks, name: str, at: int | None = None, tenant: str = "", scope: str = "") -> Any:
        size = sum(map(len, self._known(name, tenant, scope)))
        return tokens(self, name, None if at is None else min(max(1, at), size), tenant, scope)

    return wrong


def _still_stopped(arrive: Original) -> Original:
    def wrong(self: Points, rows: Any) -> Any:
        before = rows.most.copy()
        here = arrive(self, rows)
        rows.most[:] = before
        return here

    return wrong


def _with_any_state(branch_off: Original) -> Original:
    def wrong(self: Points, row: int, turn: Any, rows: Any) -> Any:
        tokens = turn.units * self._index.unit + len(turn.rest)
        if 0 < tokens < rows.computed[row]:
            return self._keep(row, turn, tokens, rows.computed.item(row))
        return branch_off(self, row, turn, rows)

    return wrong


def _by_what_it_adds(submit: Original) -> Original:
    def wrong(self: Scheduler, request: Any) -> Any:
        if not request.is_branch:
            return submit(self, request)
        with replaced(bound, "admits", lambda admits: lambda plan, _limit: admits(plan, request.max_tokens)):
            return submit(self, request)

    return wrong


def _without_its_end(branch_off: Original) -> Original:
    def wrong(self: Points, row: int, turn: Any, rows: Any) -> Any:
        return branch_off(self, row, _shorter(turn), rows)

    return wrong


def _shorter(turn: Any) -> Any:
    """The same, one token shorter by its name alone: the boundary has the tokens of another one."""
    return turn._replace(rest=turn.rest[:-1]) if len(turn.rest) > 1 else turn


FORKS = {
    "fork-shares-what-is-written": Mutation(
        "a request that is forked goes on writing to the pages that its forks share", Points, "_keep", _in_place
    ),
    "fork-copies-dropped": Mutation(
        "a request that is forked goes on with pages that nothing was copied to", Reuse, "branch_off", _without_copies
    ),
    "fork-one-further": Mutation(
        "a boundary for a fork is kept after its last token", Forks, "_branch_off", _one_further
    ),
    "fork-of-others": Mutation("requests of other tenants and scopes can be forked", Forks, "_known", _of_anyone),
    "fork-beyond-the-end": Mutation(
        "a fork at a token that does not exist is granted", Forks, "tokens", _up_to_the_end
    ),
    "fork-with-any-state": Mutation(
        "a fork before a request's end starts from the state at its end", Points, "branch_off", _with_any_state
    ),
    "fork-one-token-short": Mutation(
        "a boundary for branches is kept one token early", Points, "branch_off", _without_its_end
    ),
    "branch-stops-for-ever": Mutation(
        "a request that stopped for its branches does not go on", Points, "arrive", _still_stopped
    ),
    "branch-waits-for-ever": Mutation(
        "branches wait for a request that has passed their prompt's end", Points, "leave", nothing
    ),
    "branch-accepted-by-what-it-adds": Mutation(
        "a fork is accepted if what it adds fits", Scheduler, "submit", _by_what_it_adds
    ),
}
