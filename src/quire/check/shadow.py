"""A runner that keeps no numbers but remembers what was written where, and checks every read.

For each token it computes it writes a digest of all tokens up to it into the page slots that the tables name; then it
reads every token that the attention of each kind may see from there (`contents.py`). A page freed too early, given away
twice, moved without its table, or shared with someone else's tokens shows up at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from quire.check.contents import CLEARED, POISON, Batch, KindContents, read, read_state, write
from quire.check.definitions import Ints, Violation
from quire.check.faulty import Brought
from quire.check.scripts import Script
from quire.core.request import Request
from quire.core.step import SAMPLED, Capture, Step, StepResult
from quire.core.tier import RecordStore, Store
from quire.kinds import State
from quire.scheduler.scheduler import Scheduler


class Keeps(RecordStore, Protocol):
    """A tier to which stores go, and from where what was stored comes back."""

    def keep(self, store: Store, slots: list[Ints]) -> None: ...

    def bring(self, number: int) -> list[Brought]: ...


class ShadowRunner:
    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        """By request: whoever submits writes them down here."""
        self.tenants: dict[int, Request] = {}
        """By row, as the steps say."""
        self.before_launch: Callable[[Step], None] = lambda _step: None
        self.before_collect: Callable[[], None] = lambda: None
        self.stages: list[list[KindContents]] = []
        self.launched = 0
        self.keeping: Keeps | None = None
        """The tier, if there is one."""
        self._results: list[StepResult] = []

    def attach(self, scheduler: Scheduler) -> None:
        self.plan = scheduler.plan
        longest = self.plan.max_length + self.plan.lookahead
        for memory in scheduler.memories:
            kinds = [KindContents(table, memory.stage, longest) for table in memory.tables]
            for kind in kinds:
                kind.others = [other for other in kinds if other is not kind]
            self.stages.append(kinds)
        self.kinds = [kind for stage in self.stages for kind in stage]

    def launch(self, step: Step) -> None:
        self.launched += 1
        self.before_launch(step)
        self._enter(step)
        self._prepare(step)
        if not len(step.rows):
            self._results.append(StepResult(step.number, np.empty(0, dtype=np.int64)))
            return
        batch = self._batch(step)
        self._check_tokens(step, batch)
        for kind in self.kinds:
            if isinstance(kind.kind, State):
                read_state(kind, batch, batch.starts)
        for kind in self.kinds:
            write(kind, batch)
        for capture in step.captures:
            self._capture(batch, capture)
        for kind in self.kinds:
            read(kind, batch)
        tokens = [
            self.scripts[batch.names[entry]].tokens[batch.ends[entry] : batch.ends[entry] + batch.right[entry] + 1]
            for entry in np.flatnonzero(step.samples).tolist()
        ]
        counts = None if step.drafts is None else np.array([len(own) for own in tokens])
        self._results.append(StepResult(step.number, np.concatenate([*tokens, np.empty(0, dtype=np.int64)]), counts))

    def collect(self) -> StepResult:
        self.before_collect()
        return self._results.pop(0)

    def _batch(self, step: Step) -> Batch:
        requests = [self.tenants[row] for row in step.rows.tolist()]
        scripts = [self.scripts[request.name] for request in requests]
        digests = np.full((len(scripts), self.plan.max_length), POISON, dtype=np.int64)
        for index, script in enumerate(scripts):
            digests[index, : len(script.digests)] = script.digests
        drafts = np.zeros_like(step.counts) if step.drafts is None else step.drafts
        ends = step.ends - drafts
        limits = np.array([request.limit for request in requests])
        self._check_drafts(step, drafts, limits)
        return Batch(
            [request.name for request in requests],
            step.rows,
            step.starts,
            ends,
            np.array([_right(*one) for one in zip(scripts, ends, _drafted(step, drafts), strict=True)]),
            np.clip(limits - ends, 0, self.plan.lookahead),
            digests,
            np.array([script.own for script in scripts]),
        )

    def _check_drafts(self, step: Step, drafts: Ints, limits: Ints) -> None:
        """Drafts stay within the lookahead, before the request's last token, and within what a step may compute."""
        if (drafts > self.plan.lookahead).any() or (drafts[~step.samples] > 0).any():
            raise Violation(f"step {step.number} has more drafts in a row than the {self.plan.lookahead} planned for")
        if (step.ends >= limits).any():
            raise Violation(f"step {step.number} computes a row's last token, which nobody needs")
        if step.tokens > self.plan.batch_tokens:
            raise Violation(f"step {step.number} has {step.tokens} tokens, not {self.plan.batch_tokens} at most")

    def _enter(self, step: Step) -> None:
        """Rows have new tenants, who may have put out something before."""
        for row, request, outputs in step.entered:
            self.tenants[row] = request
            begin = len(request.prompt)
            if not np.array_equal(outputs, self.scripts[request.name].tokens[begin : begin + len(outputs)]):
                raise Violation(f"request {request.name} comes back with outputs that are not its own")

    def _check_tokens(self, step: Step, batch: Batch) -> None:
        """The step names the tokens that it computes; those that are still in flight the runner knows itself."""
        index, place = batch.spread(step.counts)
        place += step.starts[index]
        expected = [self.scripts[batch.names[i]].tokens[p] for i, p in zip(index.tolist(), place.tolist(), strict=True)]
        is_known = place < batch.ends[index]
        wrong = np.flatnonzero((step.token_ids != expected) & (step.token_ids != SAMPLED) & is_known)
        if len(wrong) or len(step.token_ids) != len(expected):
            first = int(wrong[0]) if len(wrong) else 0
            raise Violation(f"step {step.number} gives {batch.names[int(index[first])]} a token that is not its own")

    def _capture(self, batch: Batch, capture: Capture) -> None:
        """Writes the state after exactly `capture.tokens` tokens; drafts are not among them."""
        kind, entry, tokens = self.stages[capture.stage][capture.kind], capture.entry, capture.tokens
        if not batch.starts[entry] < tokens <= batch.ends[entry]:
            raise Violation(f"request {batch.names[entry]} is captured after {tokens} tokens, outside of its chunk")
        kind.slots[capture.pages, 0] = kind.named(batch.digests[entry, tokens - 1 : tokens])[0]
        kind.spoil_others(capture.pages)

    # ── what comes before the batch, in this order: copies, loads, clears ─────

    def _prepare(self, step: Step) -> None:
        for place, (stage, index, source, target) in enumerate(step.copies):
            self._store(step, place)
            kind = self.stages[stage][index]
            kind.slots[target] = kind.slots[source]
            kind.spoil_others(target)
        self._store(step, len(step.copies))
        for number, row in step.loads:
            self._land(number, row)
        for stage, index, pages in step.clears:
            kind = self.stages[stage][index]
            kind.slots[pages] = CLEARED
            kind.spoil_others(pages)

    def _store(self, step: Step, place: int) -> None:
        """What is due before the copy at `place`."""
        for store in step.stores:
            if store.after == place and self.keeping is not None:
                slots = [self.stages[stage][kind].slots[pages].copy() for stage, kind, pages in store.pages]
                self.keeping.keep(store, slots)

    def _land(self, number: int, row: int) -> None:
        assert self.keeping is not None, "a load comes from a tier"
        for one in self.keeping.bring(number):
            kind = self.stages[one.span.stage][one.span.kind]
            pages = kind.table.pages[row][:, kind.view.column(one.span.logical)].T.ravel()
            is_new = np.repeat(one.span.logical >= one.held_tokens // kind.page_tokens, len(kind.groups))
            kind.slots[pages[is_new]] = one.slots[is_new]
            kind.spoil_others(pages[is_new])


def _drafted(step: Step, drafts: Ints) -> list[Ints]:
    """The tokens that each row guesses."""
    parts = np.split(step.token_ids.astype(np.int64), np.cumsum(step.counts)[:-1])
    return [part[len(part) - count :] for part, count in zip(parts, drafts.tolist(), strict=True)]


def _right(script: Script, end: int, drafts: Ints) -> int:
    """How many of the drafts behind `end` tokens come true."""
    wrong = np.flatnonzero(script.tokens[end : end + len(drafts)] != drafts)
    return int(wrong[0]) if len(wrong) else len(drafts)
