"""Builds an engine from a checkpoint, step after step. Each step returns a finished object for the next ones.

model ──▶ plan ──▶ weights ──▶ placed model ──▶ tiers ──▶ runner ──▶ engine ──▶ recorded steps
          what does not fit is refused here
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from quire.build.drafts import make_drafter, memory_bound_tokens
from quire.build.identity import model_identity
from quire.build.limits import require_ranks
from quire.build.machine import let_threads_sleep, machine_of, resolve_device
from quire.build.model import meter_of, place_model, read_text, read_weights
from quire.build.peers import attach_tiers, loop_hooks
from quire.build.phases import Phases
from quire.build.plan import plan_checkpoint, read_shape, run_settings
from quire.build.ranks import OneRank, OnLost, for_this_rank, open_ranks
from quire.build.runner import StartReport, make_runner, record_steps, tables_of
from quire.build.tiers import describe, load_connectors
from quire.core.errors import InputError
from quire.core.events import Listener
from quire.core.failures import RowFailures
from quire.core.step import Runner
from quire.engine.engine import Engine
from quire.fetch.find import converted, downloaded, find_source
from quire.fetch.folder import Progress, in_silence
from quire.handover.hooks import HandOverHooks
from quire.kv_events.publisher import Publisher, publish_events, require_packages
from quire.options.run import DEFAULTS, RunOptions
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.recording.recorder import RecordingEngine, open_recording, require_recordable
from quire.tiers.stack import Stack
from quire.warm.work import WarmWork, warm_work

if TYPE_CHECKING:
    from quire.text.grammar import Grammars
    from quire.text.tokenizer import Tokenizer
    from quire.worker.steps.meter import Meter

STEP_SECONDS = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What is built: a checkpoint folder, its plan, and options that name a device and a draft model's folder."""

    folder: Path
    plan: Plan
    options: RunOptions
    phases: Phases = field(default_factory=Phases)


@dataclass(frozen=True, slots=True, eq=False)
class BuiltEngine:
    """An engine that is ready to run, and what it was made of."""

    engine: Engine
    plan: Plan
    tokenizer: Tokenizer
    grammars: Grammars
    folder: Path
    vocabulary_tokens: int
    """The model's: it has a column of logits for each of them."""
    report: StartReport = field(default_factory=StartReport)
    stack: Stack | None = None
    """The caches outside the pool, if there are any: close it last."""
    tiers: tuple[str, ...] = ()
    """A line for each of these caches: what it holds, or why it is not in use."""
    hooks: HandOverHooks = field(default_factory=HandOverHooks)
    """Hand-over to or from another engine: for the engine's loop, once per turn."""
    options: RunOptions = DEFAULTS
    phases: Phases = field(default_factory=Phases)
    """How long the start took."""
    kv_events: Publisher | None = None
    """Reports cached blocks to routers."""
    ranks: OneRank = field(default_factory=OneRank)
    """Whether the model runs on other processes too."""

    def after_step(self) -> None:
        if self.kv_events is not None:
            self.kv_events.flush()

    def close(self) -> None:
        """What goes on outside the engine, which has ended before."""
        if self.kv_events is not None:
            self.kv_events.close()
        if self.stack is not None:
            self.stack.close()
        self.ranks.close()

    def warm(self) -> WarmWork | None:
        """What computes ahead while this engine is idle; None: the options turn it off, or prefixes are not reused."""
        is_on = self.options.has_next_turn and not self.plan.no_reuse_because
        return warm_work(self.engine, self.options.warm_milliseconds / 1000) if is_on else None


def prepare(
    model: str | Path | None,
    options: RunOptions = DEFAULTS,
    *,
    settings: Settings | None = None,
    budget: Budget | None = None,
    plan: Plan | None = None,
    progress: Progress = in_silence,
) -> Prepared:
    """Finds the model and makes its plan, unless one is given. Raises before anything expensive happens: weights are
    downloaded, and a GGUF file is converted, once there is a plan."""
    phases, asked = Phases(), settings or Settings()
    ranks = (asked.tensor_parallel, asked.pipeline_parallel)
    if options.record is not None:
        require_recordable(options.record)
    if options.kv_events is not None:
        require_packages()
    options = replace(options, tiers=replace(options.tiers, connectors=load_connectors(options.tiers)))
    options = resolve_device(options)
    require_ranks(*(ranks if plan is None else (plan.tensor_parallel, plan.pipeline_parallel)), options)
    if options.device == "cpu":
        let_threads_sleep()
    with phases.time("resolve"):
        source = find_source(model, progress)
        draft = None if options.draft_model is None else find_source(options.draft_model, progress)
    if plan is None:
        with phases.time("plan"):
            plan = plan_checkpoint(source, run_settings(asked, options), budget, options, draft=draft)
    with phases.time("download"):
        here, draft_here = downloaded(source, progress), None if draft is None else downloaded(draft, progress)
    with phases.time("convert"):
        folder = converted(here, progress, options.weights)
        draft_here = None if draft_here is None else converted(draft_here, progress, options.weights)
    return Prepared(folder, plan, replace(options, draft_model=draft_here), phases)


def build_engine(
    prepared: Prepared,
    *,
    listeners: Sequence[Listener] = (),
    progress: Progress = in_silence,
    wrap: Callable[[Runner], Runner] = lambda runner: runner,
    meter: Meter | None = None,
    step_seconds: float = STEP_SECONDS,
    on_rank_lost: OnLost = lambda _why: None,
) -> BuiltEngine:
    """`wrap`: puts something between the engine and its runner. `meter`: of a GPU, instead of the usual one.
    `progress`: called as weights are read. `step_seconds`: within which each of several ranks confirms a step; one that
    does not, or ends, is reported to `on_rank_lost` from another thread."""
    options = for_this_rank(prepared.options, len(prepared.plan.ranks))
    prepared = replace(prepared, options=options)
    with prepared.phases.time("ranks"):
        ranks = open_ranks(prepared.folder, prepared.plan, options, on_rank_lost)
    try:
        built = _build_rank(prepared, ranks, listeners, progress, wrap=wrap, meter=meter)
        with prepared.phases.time("ranks"):
            more = ranks.confirm(step_seconds)
        return replace(built, report=replace(built.report, ranks=more))
    except BaseException:
        try:
            ranks.blame()
        finally:
            ranks.close()
        raise


def _build_rank(
    prepared: Prepared,
    ranks: OneRank,
    listeners: Sequence[Listener],
    progress: Progress,
    *,
    wrap: Callable[[Runner], Runner],
    meter: Meter | None,
) -> BuiltEngine:
    """The process that has the engine."""
    folder, plan, options, phases = prepared.folder, prepared.plan, prepared.options, prepared.phases
    with phases.time("load"):
        text = read_text(folder, options.draft_path)
        meter = meter or meter_of(options, ranks.share)
        collective, line = ranks.ports or (None, None)
        weights = read_weights(
            folder, plan, options, meter, progress, share=ranks.share, collective=collective, line=line
        )
    with phases.time("place"):
        placed = place_model(plan, weights, options, meter)
    with phases.time("digest"):
        identity = model_identity(folder, options, placed.scales, progress)
    attached = attach_tiers(plan, placed.arena, options.tiers, identity)
    runner = make_runner(plan, placed, text.grammars, attached.staging)
    stack, listeners = attached.stack, (*listeners, attached.hooks.on_event)
    engine = make_engine(
        plan,
        wrap(ranks.wrap(runner, stack)),
        options,
        stack=stack,
        listeners=listeners,
        failures=text.failures,
        most_step_tokens=_most_step_tokens(prepared),
    )
    ranks.follow(engine.scheduler.memories)
    _require_drafts(engine, options.draft_path)
    events = None if options.kv_events is None else publish_events(engine, options.kv_events, options.kv_events_topic)
    with phases.time("record"):
        report = record_steps(runner, placed, tables_of(engine))
    hooks = loop_hooks(engine, plan, attached, options.tiers.peer, identity)
    tiers = () if stack is None else tuple(describe(plan, options.tiers, stack.tiers))
    vocabulary = placed.model.vocab_size
    made = BuiltEngine(
        engine, plan, text.tokenizer, text.grammars, folder, vocabulary, report, stack, tiers, hooks, options, phases
    )
    return replace(made, kv_events=events, ranks=ranks)


def make_engine(
    plan: Plan,
    runner: Runner,
    options: RunOptions,
    *,
    stack: Stack | None = None,
    listeners: Sequence[Listener] = (),
    failures: RowFailures | None = None,
    most_step_tokens: int | None = None,
) -> Engine:
    """`most_step_tokens`: of a step with drafts (`memory_bound_tokens`). With `options.record` the engine records all
    its inputs."""
    make = Engine if options.record is None else partial(RecordingEngine, open_recording(options.record))
    return make(
        plan,
        runner,
        rules=options.rules,
        tier=stack,
        keeper=stack,
        drafter=make_drafter(plan, options, most_step_tokens),
        overlap=_overlap(plan, options),
        listeners=listeners,
        failures=failures,
    )


def _overlap(plan: Plan, options: RunOptions) -> int:
    """On GPUs the steps of a pipeline follow one another: to divide rows among several would only make them smaller."""
    return 1 if plan.pipeline_parallel > 1 and options.device != "cpu" else options.overlap


def _most_step_tokens(prepared: Prepared) -> int | None:
    """Asked only where drafts are looked up in earlier tokens; a CPU is none of the known devices."""
    plan, options = prepared.plan, prepared.options
    if options.device == "cpu" or options.draft != "suffix":
        return None
    return memory_bound_tokens(plan, read_shape(prepared.folder, options), machine_of(options.device).name)


def _require_drafts(engine: Engine, draft: Path | None) -> None:
    if draft is not None and (why := engine.scheduler.drafts.disabled):
        raise InputError(f"draft model {draft.name} could guess nothing: {why}")
