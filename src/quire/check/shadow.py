"""A runner that keeps no numbers but remembers what was written where, and checks every read.

For each token it computes it writes a digest of all tokens up to it into the page slots that the tables name; then it
reads every token that the attention of each kind may see from there. A page freed too early, given away twice, moved
without its table, or shared with someone else's tokens shows up at once.

    page    ▓▓▓▓  a digest in each slot, one array per stage and kind
    POISON  what nobody wrote, and what another kind wrote over in the same sheet
    DRAFT   lookahead that did not come true: written, never to be read
    CLEARED a state nothing was written to yet
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from quire.cache.tables import Table
from quire.check.definitions import Ints, Violation, seen
from quire.check.scripts import Script
from quire.core.request import Request
from quire.core.step import SAMPLED, Capture, Step, StepResult
from quire.core.tier import Keeper, Store
from quire.kinds import Cross, Kind, State
from quire.plan.layout import GRANULE_BYTES
from quire.plan.plan import StagePlan
from quire.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from quire.check.keeping import Brought


class Keeps(Keeper, Protocol):
    """A tier to which stores go, and from where what was stored comes back."""

    def keep(self, store: Store, slots: list[Ints]) -> None: ...

    def bring(self, number: int) -> list[Brought]: ...


POISON, DRAFT, CLEARED = -1, -2, 0
_NAMES = {POISON: "what nobody wrote", DRAFT: "a draft", CLEARED: "a cleared state"}


class KindContents:
    """What the pages of one kind hold on one stage: (page, slot)."""

    def __init__(self, table: Table, stage: StagePlan, longest: int) -> None:
        self.table, self.kind, self.view = table, table.kind, table.view
        self.page_tokens = table.plan.page_tokens
        self.per_sheet = table.plan.pages_per_sheet
        self.sheet_granules = stage.sheet_bytes // GRANULE_BYTES
        self.page_granules = table.plan.page_bytes // GRANULE_BYTES
        self.slots = np.full((stage.sheets * self.per_sheet, self.page_tokens), POISON, dtype=np.int64)
        self.groups = np.arange(table.plan.groups)
        self.columns = table.column(np.arange(longest + 1))
        self.others: list[KindContents] = []
        """Of the same stage: what is written here is no longer theirs."""

    def places(self, rows: Ints, positions: Ints) -> tuple[Ints, Ints]:
        """Where the tables of addresses say that tokens lie: (token, group) → page, slot."""
        logical, slots = np.divmod(positions, self.page_tokens)
        sheet, granule = np.divmod(self.view.addresses[rows, :, self.columns[logical]], self.sheet_granules)
        return sheet.astype(np.int64) * self.per_sheet + granule // self.page_granules, slots[:, None]

    def named(self, digests: Ints) -> Ints:
        """What each group stores for a digest; what stands for no token is the same in all of them."""
        each = digests[:, None]
        return np.asarray(np.where(each > 0, each + self.groups, each))

    def write(self, rows: Ints, positions: Ints, digests: Ints) -> None:
        pages, slots = self.places(rows, positions)
        self.slots[pages, slots] = self.named(digests)
        self.spoil_others(pages)

    def check(self, rows: Ints, positions: Ints, digests: Ints, names: Sequence[str], index: Ints) -> None:
        """That each row's places hold these digests; names[index[i]] is whose they are."""
        found = self.slots[self.places(rows, positions)]
        wrong = np.flatnonzero((found != self.named(digests)).any(axis=1))
        if len(wrong):
            first = int(wrong[0])
            what = _NAMES.get(int(found[first].min()), "the contents of other tokens")
            raise Violation(
                f"{self.table.plan.name}: request {names[int(index[first])]} reads position "
                f"{int(positions[first])} and finds {what}"
            )

    def spoil_others(self, pages: Ints) -> None:
        if self.others:
            sheets = np.unique(pages // self.per_sheet)
            for other in self.others:
                other.slots.reshape(-1, other.per_sheet, other.page_tokens)[sheets] = POISON


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A step, spelled out for every token."""

    names: list[str]
    rows: Ints
    starts: Ints
    ends: Ints
    """Of what is known: drafts come behind."""
    right: Ints
    """Drafts that will come true."""
    ahead: Ints
    digests: Ints
    """(row of the step, position)"""
    own: Ints

    def spread(self, counts: Ints) -> tuple[Ints, Ints]:
        """For each of counts[i] things of row i: i, and its number."""
        index = np.repeat(np.arange(len(counts)), counts)
        return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)


class ShadowRunner:
    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        """By request: whoever submits writes them down here."""
        self.staged: dict[int, Ints] = {}
        """By load: the digests that a tier brought."""
        self.tenants: dict[int, Request] = {}
        """By row, as the steps say."""
        self.before_launch: Callable[[Step], None] = lambda _step: None
        self.before_collect: Callable[[], None] = lambda: None
        self.stages: list[list[KindContents]] = []
        self.launched = 0
        self.keeping: Keeps | None = None
        """A tier to which stores go."""
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
                _read_state(kind, batch, batch.starts)
        for kind in self.kinds:
            _write(kind, batch)
        for capture in step.captures:
            self._capture(batch, capture)
        for kind in self.kinds:
            _read(kind, batch)
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
        if self.keeping is None:
            for kind in self.kinds:
                _load(kind, row, self.staged[number])
            del self.staged[number]
            return
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


def _load(kind: KindContents, row: int, digests: Ints) -> None:
    """Brings what was staged into those pages of a row that it holds."""
    one, table = np.array([row]), kind.table
    if isinstance(kind.kind, State):
        kind.write(one, np.zeros(1, dtype=np.int64), digests[-1:])
    elif not isinstance(kind.kind, Cross):
        logical = np.concatenate([np.arange(table.kept[row]), np.arange(table.first[row], table.end[row])])
        positions = np.arange(len(digests))
        positions = positions[np.isin(positions // kind.page_tokens, logical)]
        kind.write(np.repeat(one, len(positions)), positions, digests[positions])


def _read_state(kind: KindContents, batch: Batch, positions: Ints) -> None:
    """The state must stand for exactly the tokens before `positions`; before the first one it is cleared."""
    index = np.arange(len(positions))
    before = np.where(positions > 0, batch.digests[index, positions - 1], CLEARED)
    kind.check(batch.rows, np.zeros_like(positions), before, batch.names, index)


def _write(kind: KindContents, batch: Batch) -> None:
    if isinstance(kind.kind, Cross):
        index = np.flatnonzero(batch.starts == 0)
        index, place = (
            np.repeat(index, kind.kind.encoder_tokens),
            np.tile(np.arange(kind.kind.encoder_tokens), len(index)),
        )
        kind.write(batch.rows[index], place, batch.own[index])
        return
    ahead, draft = batch.spread(batch.ahead)
    drafted = np.where(draft < batch.right[ahead], batch.digests[ahead, batch.ends[ahead] + draft], DRAFT)
    if isinstance(kind.kind, State):
        kind.write(batch.rows, np.zeros_like(batch.ends), batch.digests[np.arange(len(batch.ends)), batch.ends - 1])
        if kind.kind.rewinds:
            kind.write(batch.rows[ahead], draft + 1, drafted)
        return
    index, place = batch.spread(batch.ends - batch.starts)
    place += batch.starts[index]
    kind.write(batch.rows[index], place, batch.digests[index, place])
    kind.write(batch.rows[ahead], batch.ends[ahead] + draft, drafted)


def _positions(kind: Kind, first: int, end: int) -> Ints:
    runs = [np.arange(*run) for run in seen(kind, first, end)]
    return runs[0] if len(runs) == 1 else np.concatenate(runs)


def _read(kind: KindContents, batch: Batch) -> None:
    if isinstance(kind.kind, State):
        _read_state(kind, batch, batch.ends)
        return
    if isinstance(kind.kind, Cross):
        index, place = batch.spread(np.full(len(batch.rows), kind.kind.encoder_tokens))
        digests = batch.own[index]
    else:
        ends = (batch.ends + batch.right).tolist()
        parts = [_positions(kind.kind, s, e) for s, e in zip(batch.starts.tolist(), ends, strict=True)]
        place = np.concatenate(parts)
        index = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        digests = batch.digests[index, place]
    kind.check(batch.rows[index], place, digests, batch.names, index)
