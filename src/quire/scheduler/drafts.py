"""Draft tokens: which rows get them, and which are accepted. They use the lookahead that every demand includes.

    launch   rows that sample, in order  ──▶ drafts after their tokens, as far as lookahead, limit and budget allow
    result   accepted drafts are computed tokens like others; rejected ones leave no trace

So drafts need no page that was not counted, delay no request, and are the first to be left out if the step is full. A
row with drafts in flight is not scheduled before its result, because its position is unknown. A row with sampled tokens
in flight may draft after them: the drafter proposes those too, and their proposals are skipped.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.cache.memory import StageMemory
from quire.core.drafting import Drafter
from quire.core.events import Publisher, TokensDrafted
from quire.core.request import Tokens
from quire.core.step import Step, StepResult
from quire.plan.plan import Plan
from quire.scheduler.rows import Ints, Rows

Flags = npt.NDArray[np.bool_]


class Drafts:
    """Adds draft tokens to steps, and takes those that were accepted."""

    def __init__(
        self, plan: Plan, memories: list[StageMemory], rows: Rows, drafter: Drafter | None, publisher: Publisher
    ) -> None:
        self.disabled = _why_not(plan, drafter)
        self._drafter = None if self.disabled else drafter
        self._lookahead, self._batch_tokens = plan.lookahead, plan.batch_tokens
        self._memories, self._rows, self._publisher = memories, rows, publisher
        self._told = np.zeros(plan.max_requests, dtype=np.int64)
        """Tokens of each row that the drafter knows."""
        self._epochs = np.full(plan.max_requests, -1, dtype=np.int64)
        """The row's epoch that these tokens belong to."""

    def waiting(self, rows: Ints) -> Flags | None:
        """Rows that cannot continue before the result of their drafts; None: there are no drafts."""
        return None if self._drafter is None else self._rows.drafts[rows] > 0

    def add(self, rows: Ints, counts: Ints, samples: Flags, tokens: Tokens) -> tuple[Ints | None, Tokens]:
        """Drafts for a step that computes these tokens: how many after each row's own, and all tokens of the step."""
        if self._drafter is None:
            return None, tokens
        state, room, found = self._rows, self._batch_tokens - len(tokens), []
        most = np.minimum(self._lookahead, state.limit[rows] - 1 - state.computed[rows] - counts) * samples
        asked = ((most > 0) & state.may_draft[rows]).nonzero()[0] if room else np.empty(0, dtype=np.int64)
        drafts, some = np.zeros_like(counts), rows[asked]
        self._tell(self._drafter, some)
        in_flight = state.expected[some] - state.known[some]
        for number, tail in self._drafter.propose(some, most[asked] + in_flight, len(tokens)).items():
            found.append(tail[in_flight[number] :][: min(room, most[asked[number]])])
            drafts[asked[number]] = len(found[-1])
            room -= len(found[-1])
        if not drafts.any():
            return None, tokens
        state.drafts[rows] = drafts
        ends = np.repeat(np.cumsum(counts), drafts)
        return drafts, np.insert(tokens, ends, np.concatenate(found))

    def _tell(self, drafter: Drafter, rows: Ints) -> None:
        state = self._rows
        for row in rows[self._epochs[rows] != state.epoch[rows]].tolist():
            self._told[row] = known = int(state.known[row])
            drafter.enter(row, state.tokens(row, 0, known), state.requests[row].scope)
        self._epochs[rows] = state.epoch[rows]
        new = state.known[rows] - self._told[rows]
        for number in range(int(new.max(initial=0))):
            some = rows[new > number]
            drafter.extend(some, state.outputs[some, self._told[some] - state.prompt[some]])
            self._told[some] += 1

    def accept(self, step: Step, result: StepResult, current: Flags) -> tuple[Ints, Ints]:
        """Appends each row's accepted tokens except the last one. Returns, by entry of the step, how many of its tokens
        are computed now, and, by row that samples, its last token. Tokens after a stop token are dropped."""
        if step.drafts is None:
            return step.counts, result.tokens
        assert result.counts is not None, "a step with drafts says how many came true"
        new, begins = result.counts.copy(), np.cumsum(result.counts) - result.counts
        for place in np.flatnonzero((new > 1) & current[step.samples]).tolist():
            row = int(step.rows[step.samples][place])
            tokens = result.tokens[begins[place] : begins[place] + new[place]]
            stops = np.flatnonzero(np.isin(tokens[:-1], self._rows.stops[row]))
            new[place] = stops[0] + 1 if len(stops) else new[place]
            self._take(row, tokens[: new[place] - 1])
        accepted = np.zeros_like(step.counts)
        accepted[step.samples] = new - 1
        self._rows.drafts[step.rows[current & (step.drafts > 0)]] = 0
        drafted = int(step.drafts[current].sum())
        self._publisher.publish(TokensDrafted(self._publisher.step, drafted, int(accepted[current].sum())))
        return step.counts - step.drafts + accepted, result.tokens[begins + new - 1]

    def _take(self, row: int, tokens: Ints) -> None:
        """Appends accepted drafts to a row: they are computed, and its recurrent states are those after them."""
        self._rows.extend(row, tokens)
        self._rows.computed[row] += len(tokens)
        for memory in self._memories:
            memory.move_states(row, len(tokens))


def _why_not(plan: Plan, drafter: Drafter | None) -> str:
    """Why there are no drafts; empty if there are."""
    if drafter is None:
        return "there is no drafter"
    if not plan.lookahead:
        return "the plan has no lookahead: set speculative_tokens to 1 or more"
    stuck = [k.name for stage in plan.stages for k in stage.kinds if not k.kind.can_rewind]
    return f"{stuck[0]} keeps one state, so a wrong guess could not be undone" if stuck else ""
