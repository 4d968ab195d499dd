"""Steps as messages: what followers decode is what the engine launched, and their tables are the scheduler's."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from messages import MODELS, steps_of, work_for
from quire.check.coverage import Coverage, Mechanism
from quire.check.episode import Episode
from quire.check.host import HostTier
from quire.core.request import Request
from quire.core.rules import Rules
from quire.core.sampling import Sampling
from quire.core.step import Step, StepResult
from quire.core.tier import Load, Staged
from quire.core.units import KIB
from quire.ranks.ints import IntReader, IntWriter
from quire.ranks.message import RankStep, decode, encode
from quire.ranks.tables import TableLog, empty_tables
from quire.scheduler.scheduler import Scheduler
from small_engines import small_plan

EPISODES = 20
SIZES = ("copies", "clears", "captures", "stores", "loads")


class Followed:
    """A runner in front of the checker's: each step travels as a message, and the checker reads pages where the
    follower's tables say that they lie."""

    def __init__(self, episode: Episode) -> None:
        self.inner, self.scheduler = episode.runner, episode.scheduler
        plan = episode.system.plan
        self.logs = [TableLog(table) for memory in episode.scheduler.memories for table in memory.tables]
        self.tables = empty_tables(plan)
        self.tier = episode.tier
        self.seen = dict.fromkeys((*SIZES, "drafts", "wrapped"), 0)
        for kinds, views in zip(episode.runner.stages, self.tables, strict=True):
            for kind, view in zip(kinds, views, strict=True):
                kind.view = view

    def launch(self, step: Step) -> None:
        loads = tuple(self._staged(number) for number, _ in step.loads)
        sent = RankStep(step, (len(step.rows), True) if len(step.rows) else None, loads)
        got = decode(encode(sent, [log.take() for log in self.logs]), self.tables)
        assert got.recording == sent.recording
        _require_equal(got.step, step)
        _require_loads(got.loads, loads)
        self._require_tables(step)
        for name in SIZES:
            self.seen[name] += len(getattr(step, name))
        self.seen["drafts"] += 0 if step.drafts is None else int(step.drafts.sum())
        self.inner.launch(step)

    def collect(self) -> StepResult:
        return self.inner.collect()

    def _staged(self, number: int) -> Staged:
        if isinstance(self.tier, HostTier):
            return self.tier.stack.staged_load(number)
        return Staged(Load(number, "", (), 0), ((1, 2), (), (7,)))

    def _require_tables(self, step: Step) -> None:
        """Every cell that was ever written is the same, whichever rows the step has."""
        for memory, views in zip(self.scheduler.memories, self.tables, strict=True):
            for table, view in zip(memory.tables, views, strict=True):
                assert (view.addresses == table.view.addresses).all()
                self.seen["wrapped"] += bool((table.end[step.rows] > table.width).any())


def _require_equal(got: Step, sent: Step) -> None:
    for field in fields(Step):
        if field.name in ("epochs", "entered", "tables", "stores", "captures"):
            continue
        assert _plain(getattr(got, field.name)) == _plain(getattr(sent, field.name)), field.name
    assert [row for row, _, _ in got.entered] == [row for row, _, _ in sent.entered]
    stores = [[(s.place, s.after, _plain(s.pages)) for s in step.stores] for step in (got, sent)]
    assert stores[0] == stores[1]
    captures = [[(c.entry, c.tokens, c.stage, c.kind, _plain(c.pages)) for c in step.captures] for step in (got, sent)]
    assert captures[0] == captures[1]


def _require_loads(got: tuple[Staged, ...], sent: tuple[Staged, ...]) -> None:
    for one, other in zip(got, sent, strict=True):
        assert one.records == other.records
        numbers = [(s.load.number, len(s.load.keys), s.load.tokens, s.load.held_tokens) for s in (one, other)]
        assert numbers[0] == numbers[1]


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _followed_episode(seed: int, coverage: Coverage) -> dict[str, int]:
    episode = Episode(seed, coverage)
    try:
        followed = Followed(episode)
        episode.engine.runner = followed
        episode.run()
    finally:
        episode.close()
    return followed.seen


@pytest.mark.law
def test_a_followers_tables_are_the_schedulers_at_every_step_of_a_random_campaign() -> None:
    """With preemption, compaction, windows that wrap round, prefix hits, forks, captures, copies, loads and drafts. A
    change of a table that is not sent, or a cell that is written to the wrong place, would break it."""
    coverage, seen = Coverage(), dict.fromkeys((*SIZES, "drafts", "wrapped"), 0)
    for seed in range(EPISODES):
        for name, count in _followed_episode(7_100_000 + seed, coverage).items():
            seen[name] += count
    assert min(seen.values()) > 5, seen
    happened = {Mechanism.PREEMPTION, Mechanism.COMPACTION, Mechanism.EVICTION, Mechanism.CHECKPOINT}
    assert happened <= {mechanism for _, mechanism in coverage.mechanisms}


@pytest.mark.law
def test_integers_of_any_size_come_back_as_they_were() -> None:
    """Constant, rising, scattered, negative, single and no numbers; in the order in which they were written."""
    random = np.random.default_rng(0)
    spans = [1, 200, 70_000, 1 << 40, 1 << 61]
    arrays = [random.integers(-span, span, count) for span in spans for count in (0, 1, 2, 50)]
    arrays += [np.full(9, -1), np.arange(300), 1000 - 7 * np.arange(5), np.array([True, False])]
    writer = IntWriter()
    for values in arrays:
        writer.add(values)
    reader = IntReader(writer.bytes())
    assert all((reader.take() == values).all() for values in arrays)
    assert reader.is_at_end


def test_numbers_that_follow_a_rule_take_no_bytes_of_their_own() -> None:
    """The rows of a decode step, their counts and the mark for the token sampled last cost a head each."""
    sizes = []
    for values in (np.arange(256), np.ones(256), np.full(256, -1), np.arange(2)):
        writer = IntWriter()
        writer.add(values)
        sizes.append(len(writer.bytes()))
    assert len(set(sizes)) == 1


@pytest.mark.parametrize("spread", [1, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32])
def test_numbers_come_back_as_they_were_however_far_apart(spread: int) -> None:
    """Also where the greatest is the first that a byte, two or four cannot hold."""
    values, writer = np.array([7, 7 + spread, 7]), IntWriter()
    writer.add(values)
    assert IntReader(writer.bytes()).take().tolist() == values.tolist()


def test_a_prompt_does_not_travel_but_how_much_of_it_is_scored_does() -> None:
    """Followers compute logits where a prompt is scored; what its tokens are, and how others are drawn, they never
    learn."""
    plan = small_plan(["full"], 400, budget=256)
    scored = Request("a", np.arange(100, dtype=np.int32), 5, sampling=Sampling(prompt_logprobs=3))
    other = Request("b", np.arange(500, 600, dtype=np.int32), 5, sampling=Sampling(temperature=1.0, seed=7))
    scheduler = Scheduler(plan, Rules())
    scheduler.submit(scored)
    scheduler.submit(other)
    logs = [TableLog(table) for memory in scheduler.memories for table in memory.tables]
    step = scheduler.schedule()
    assert step is not None
    got = decode(encode(RankStep(step), [log.take() for log in logs]), empty_tables(plan)).step
    (_, first, outputs), (_, second, _) = got.entered
    assert first.sampling == Sampling(prompt_logprobs=0)
    assert second.sampling == Sampling()
    assert (len(first.prompt), len(second.prompt), first.prompt.any(), len(outputs)) == (100, 1, False, 0)


@pytest.mark.parametrize("model", MODELS)
def test_a_decode_step_of_256_rows_is_at_most_16_kib(model: str) -> None:
    """On a plan for 131,072 tokens, with addresses that follow no rule; also if every row needs a page of each kind, or
    has drafts. Whole tables would take megabytes."""
    work = work_for(model)
    steps = [make() for name, make in steps_of(work).items() if "decode" in name]
    assert len(steps) == 3
    assert all(len(work.send(step)) <= 16 * KIB for step in steps)
