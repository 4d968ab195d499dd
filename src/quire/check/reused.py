"""Reuse: a request starts after the longest prefix that every kind can prove, and hands one over when it leaves.

starts    at the greatest boundary that is proved and has room for what it writes on: neither before nor beyond
passes the end of its prompt    what a hit there needs is kept (where no state must be copied for it)
leaves    the next one can start where it stood
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.check import state
from quire.check.definitions import Violation
from quire.check.laws import Law
from quire.check.prefixes import Prefixes
from quire.core.events import Event, RequestAccepted, RequestAdmitted
from quire.core.request import Request
from quire.kinds import State
from quire.prefix.points import RequestForked
from quire.scheduler.queue import Ticket
from quire.scheduler.scheduler import Scheduler


class Reused(Law):
    def __init__(self, scheduler: Scheduler, prefixes: Prefixes, requests: Mapping[str, Request]) -> None:
        self.scheduler, self.prefixes, self.requests = scheduler, prefixes, requests
        kinds = [kind.kind for stage in scheduler.plan.stages for kind in stage.kinds]
        self._has_states = any(isinstance(kind, State) for kind in kinds)
        self._has_boundaries = any(not kind.grows for kind in kinds)
        self._expected = 0
        self._proved: set[int] = set()
        """Of a branch, for whose copies prefixes are evicted: where it may start."""
        self._named: set[bytes] = set()
        """Units of all requests that there ever were."""
        self._passing: dict[str, int] = {}
        """Requests that have not come to the last whole unit of their prompts: where that ends."""
        self._has_left = False
        """During this turn some request did: what it keeps may take the place of boundaries before it."""
        self._has_forked = False
        """Since the last turn some request was forked, or a branch began: boundaries are evicted for what they copy."""
        if not prefixes.is_disabled:
            state.watch_starts(scheduler, self._before_start, self._after_start)
            state.watch_leaves(scheduler, self._after_leave)

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestAccepted) and not self.prefixes.is_disabled:
            self._named.update(self.prefixes.keys(self.requests[event.request]))
        is_branch = isinstance(event, RequestAdmitted) and self.requests[event.request].is_branch
        self._has_forked |= isinstance(event, RequestForked) or is_branch

    def at_end(self) -> None:
        if strange := state.wanted_units(self.scheduler) - self._named:
            raise Violation(f"boundaries are wanted after {len(strange)} units that no request has")

    def _before_start(self, row: int, waiting: Ticket) -> None:
        self._named.update(self.prefixes.keys(waiting.request))
        request, known = waiting.request, int(self.scheduler.rows.known[row])
        self._expected, self._proved = 0, {0}
        if request.sampling.prompt_logprobs is not None and known == len(request.prompt):
            return
        if request.is_branch:
            self._proved |= {one.tokens for one in self.prefixes.boundaries(request, known - 1)}
        for boundary in self.prefixes.boundaries(request, known - 1):
            if self.prefixes.has_room(boundary):
                self._expected = boundary.tokens
                return

    def _after_start(self, row: int, waiting: Ticket) -> None:
        found, request = waiting.hit_tokens, waiting.request
        is_evicted_for = request.is_branch and found > self._expected and found in self._proved
        if found != self._expected and not is_evicted_for:
            raise Violation(f"request {request.name} starts after {found} tokens, {self._expected} can be proved")
        if int(self.scheduler.rows.settled[row]) != found:
            raise Violation(f"request {request.name} found {found} tokens and starts elsewhere")
        self._passing[request.name] = (len(request.prompt) - 1) // self.prefixes.unit * self.prefixes.unit

    def _after_leave(self, row: int, request: Request) -> None:
        """Tokens that are not known yet have no name: then whole units are kept, as far as they settled."""
        rows, unit = self.scheduler.rows, self.prefixes.unit
        self._passing.pop(request.name, None)
        self._has_left = True
        computed, known, settled = int(rows.computed[row]), int(rows.known[row]), int(rows.settled[row])
        if not self._has_boundaries:
            end = min(computed, known) // unit * unit if computed <= known else settled // unit * unit
        else:
            end = computed if computed <= known else 0
        if end and not self._is_proved(request, end):
            raise Violation(f"request {request.name} leaves after {computed} tokens, and none can start after {end}")

    def _is_proved(self, request: Request, tokens: int) -> bool:
        boundary = self.prefixes.boundary(request, tokens)
        return boundary is not None and self.prefixes.is_proved(boundary)

    def before_turn(self) -> None:
        self._has_left = False

    def after_turn(self) -> None:
        rows = self.scheduler.rows
        for name, end in list(self._passing.items()):
            row = rows.row_of.get(name)
            if row is None or state.is_loading(self.scheduler, row):
                self._passing.pop(name)  # a load may bring it beyond that
            elif rows.settled[row] >= end:
                self._passing.pop(name)
                self._check_passed(row, end)
        self._has_forked = False

    def _check_passed(self, row: int, end: int) -> None:
        """A state is copied where there is room for it; other kinds keep what the row holds."""
        if end <= self._started_at(row) or self._has_states or self._has_left or self._has_forked:
            return
        request = self.scheduler.rows.requests[row]
        if not self._is_proved(request, end):
            raise Violation(f"request {request.name} passed the end of its prompt, and none can start after {end}")

    def _started_at(self, row: int) -> int:
        return self.scheduler.running.tickets[row].hit_tokens
