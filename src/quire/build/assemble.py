"""Builds an engine from a configuration: the one module that knows every part.

folder ──▶ shape ──▶ plan (refused here if it does not fit, before any weight is read)
                      ├──▶ arena
weights ──▶ model ────┴──▶ runner ──▶ engine        a draft model likewise: its layers lie in the same plan and arena
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.build.identity import weights_identity
from quire.build.machine import Machine, available_bytes, chosen_device, machine_of
from quire.build.peers import Beside, join_engine, join_stack, tiers_beside
from quire.build.tiers import Tiers, attach, connector_of
from quire.core.drafting import LeftOpen
from quire.core.dtypes import DType
from quire.core.errors import DoesNotFit, InputError
from quire.core.events import Listener
from quire.core.laid_out import Held
from quire.core.rules import Rules
from quire.core.units import format_bytes
from quire.engine.engine import Engine
from quire.fetch.find import configuration, converted
from quire.fetch.folder import Progress, in_silence, keep_compiled
from quire.models.drafted import drafted
from quire.models.read import read_config
from quire.models.shape import ModelShape
from quire.plan.make import make_plan
from quire.plan.plan import Plan, StagePlan
from quire.plan.settings import Budget, Settings
from quire.recording.recorder import RecordingEngine, open_recording, require_recordable
from quire.scheduler.ngrams import NGramDrafter
from quire.tiers.stack import Stack

if TYPE_CHECKING:
    from quire.text.grammar import Grammars
    from quire.text.tokenizer import Tokenizer
    from quire.worker.graphs import Tables
    from quire.worker.meter import Measured
    from quire.worker.runner import TorchRunner
    from quire.worker.weights.write import Advance

NO_TIERS = Tiers()
TORCH_NAMES = {DType.FP32: "float32", DType.BF16: "bfloat16", DType.FP16: "float16"}


@dataclass(frozen=True, slots=True)
class Started:
    """What a GPU's start came to; on a CPU there is nothing to tell."""

    measured: tuple[Measured, ...] = ()
    """The ledger as it came out, beside the plan's."""
    steps: str = ""
    """Whether decode steps are recorded, for how many rows, or why not."""
    has_recordings: bool = True
    kernels: tuple[str, ...] = ()
    """Who runs each kind, and why nobody faster does."""

    def lines(self) -> tuple[str, ...]:
        steps = *((self.steps,) if self.steps else ()), *(f"kernels: {one}" for one in self.kernels)
        sizes = ((line.name, format_bytes(line.measured_bytes), line.planned_bytes) for line in self.measured)
        return *steps, *(f"memory: {name} {size}, planned {format_bytes(planned)}" for name, size, planned in sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """An engine that is ready to run, and what it was made of."""

    engine: Engine
    plan: Plan
    tokenizer: Tokenizer
    grammars: Grammars
    folder: Path
    vocabulary_tokens: int
    """That the model has columns for."""
    stack: Stack | None = None
    """What lies beyond the pool, if anything does: close it last."""
    started: Started = Started()
    beside: Beside = field(default_factory=Beside)
    """Hand-over to or from another engine: its loop's business, once per turn."""


def tiers_from(fields: Mapping[str, Any]) -> Tiers:
    """From plain values, connectors by name: as they travel between processes."""
    connectors = tuple(connector_of(name) for name in fields.get("connectors", ()))
    return Tiers(**{**fields, "connectors": connectors})


def plan_folder(
    folder: Path,
    settings: Settings,
    budget: Budget | None,
    dtype: DType,
    ignore_fields: Sequence[str] = (),
    draft: Path | None = None,
    device: str = "cpu",
) -> Plan:
    """The plan of a checkpoint whose weights will be held as `dtype`; raises before anything heavy happens.
    `ignore_fields`: of its configuration, because someone knows that they do not touch memory. `draft`: a draft model
    that lives in the same pool."""
    if settings.tensor_parallel > 1 or settings.pipeline_parallel > 1:
        raise InputError("one device runs a model for now: leave --tensor-parallel and --pipeline-parallel at 1")
    if settings.kv_dtype not in (*TORCH_NAMES, DType.FP8):
        known = ", ".join(dtype.value for dtype in (*TORCH_NAMES, DType.FP8))
        raise InputError(f"no kernel here reads keys and values as {settings.kv_dtype.value}: choose one of {known}")
    if draft is not None and not settings.speculative_tokens:
        raise InputError(
            f"nothing is planned for the guesses of {draft.name}: plan with --draft-model and --draft-tokens"
        )
    shape = _shape_of(folder, dtype, ignore_fields, device)
    shape = shape if draft is None else drafted(shape, _shape_of(draft, dtype, device=device))
    plan = make_plan(shape, settings, budget or memory_of(machine_of(device))).require_fit()
    require_memory(plan, plan, available_bytes() if device == "cpu" else machine_of(device).memory_bytes)
    return plan


def _shape_of(source: Path, dtype: DType, ignore_fields: Sequence[str] = (), device: str = "cpu") -> ModelShape:
    name, config = configuration(source)
    shape = read_config(config, name, ignore_fields, Held(dtype, device == "cpu"))
    return replace(shape, draft_layers=())  # nothing runs them: tokens are guessed otherwise


def require_memory(plan: Plan, like: Plan, available: int) -> None:
    """A plan's pool must lie in this machine's memory, beside the weights as the plan `like` holds them."""
    pool, weights = (
        sum(line.bytes for line in one.ranks[0].ledger if line.name == name)
        for one, name in ((plan, "pool"), (like, "weights"))
    )
    if pool + weights > available:
        raise DoesNotFit(
            f"a pool of {format_bytes(pool)} and weights of {format_bytes(weights)} exceed the "
            f"{format_bytes(available)} that this machine has left: lower the pool to "
            f"{format_bytes(max(0, available - weights))} or less"
        )


def following(settings: Settings, dtype: DType) -> Settings:
    """Keys and values in the weights' dtype, where nothing else was asked for."""
    return replace(settings, kv_dtype=dtype) if settings.kv_dtype is DType.BF16 else settings


def weights_dtype(device: str) -> DType:
    """Where nothing else was asked for."""
    return DType.FP32 if device == "cpu" else DType.BF16


def memory_of(machine: Machine) -> Budget:
    return Budget(
        machine.memory_bytes,
        machine.memory_fraction,
        device=machine.name,
        is_accelerator=machine.is_accelerator,
        is_whole_device=True,
    )


def require_gpu(deterministic: bool, device: str, compiled: bool = False) -> None:
    if compiled and device == "cpu":
        raise InputError("steps are not compiled on a CPU: --compile needs --device cuda, so leave it out here")
    if deterministic and device == "cpu":
        raise InputError(
            "products on a CPU are added up in an order that depends on how many tokens a step has: --deterministic "
            "needs --device cuda"
        )


def assemble(
    folder: Path,
    settings: Settings | None = None,
    budget: Budget | None = None,
    *,
    dtype: DType | None = None,
    kv_dtype: DType | None = None,
    device: str = "cpu",
    compiled: bool = False,
    deterministic: bool = False,
    rules: Rules | None = None,
    tiers: Tiers = NO_TIERS,
    overlap: int = 2,
    listeners: Sequence[Listener] = (),
    progress: Progress | None = None,
    plan: Plan | None = None,
    draft: Path | None = None,
    record: Path | None = None,
) -> Assembled:
    """`folder` and `draft`: checkpoint folders, or GGUF files, which are converted once there is a plan. `dtype` none:
    fp32 on a CPU, bf16 elsewhere; `kv_dtype` none: `settings.kv_dtype`, or the weights' where that is left alone. With
    `speculative_tokens`, tokens are guessed by the model in `draft`, or by n-grams if there is none. `compiled`: on a
    GPU, torch.compile fuses what lies between kernels, which takes some seconds at the start. `deterministic`: on a
    GPU, what a request yields does not depend on others. `progress` is told how far the weights are read. `plan`: made
    already. `record`: a file for all that the engine is given, for `quire replay`; prompts are in it."""
    device = chosen_device(device)
    dtype = dtype or weights_dtype(device)
    if dtype not in TORCH_NAMES:
        raise InputError(
            f"weights cannot be held as {dtype.value}: choose one of {', '.join(d.value for d in TORCH_NAMES)}"
        )
    require_gpu(deterministic, device, compiled)
    _require_record(record, tiers)
    settings = settings or Settings()
    settings = following(settings, dtype) if kv_dtype is None else replace(settings, kv_dtype=kv_dtype)
    plan = plan or plan_folder(folder, settings, budget, dtype, draft=draft, device=device)
    folder = converted(folder, progress or in_silence)
    draft = None if draft is None else converted(draft, progress or in_silence)

    from quire.text.grammar import Grammars
    from quire.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder)
    if draft is not None:
        _require_same_tokens(tokenizer, folder, Tokenizer.load(draft), draft)
    grammars = Grammars(tokenizer)
    advance = None if progress is None else partial(progress, "load")
    start = _on_cpu if device == "cpu" else partial(_on_gpu, compiled=compiled, deterministic=deterministic)
    runner, finish = start(folder, plan, dtype, grammars, advance, draft)
    drafter = None if not plan.lookahead else NGramDrafter() if draft is None else LeftOpen()
    checkpoints = [own for own in (folder, draft) if own is not None and tiers.is_shared]
    identity = "".join(weights_identity(own, progress or in_silence) for own in checkpoints)
    identity += dtype.value + runner.model.scales + ("" if runner.draft is None else runner.draft.model.scales)
    beside = Beside()
    tiers = tiers_beside(beside, plan, tiers, identity)
    stack = None if tiers.is_empty else attach(plan, runner, tiers, identity)
    join_stack(beside, stack, tiers.peer)
    told = (*listeners, beside.hear)
    make = Engine if record is None else partial(RecordingEngine, open_recording(record))
    engine = make(plan, runner, rules=rules, tier=stack, keeper=stack, drafter=drafter, overlap=overlap, listeners=told)
    grammars.on_failure = engine.fail
    if draft is not None and engine.scheduler.drafts.disabled:
        raise InputError(f"draft model {draft.name} could guess nothing: {engine.scheduler.drafts.disabled}")
    tables = tuple(tuple(table.view for table in memory.tables) for memory in engine.scheduler.memories)
    started = finish(tables)
    join_engine(beside, engine, plan, stack, tiers.peer, identity)
    return Assembled(engine, plan, tokenizer, grammars, folder, runner.model.vocab_size, stack, started, beside)


def _require_record(record: Path | None, tiers: Tiers) -> None:
    if record is None:
        return
    if tiers.peer is not None:
        raise InputError("a recording does not know what another engine computes: leave --record or --role out")
    require_recordable(record)


def _on_cpu(
    folder: Path, plan: Plan, dtype: DType, grammars: Grammars, advance: Advance | None, draft: Path | None
) -> tuple[TorchRunner, Callable[[Tables], Started]]:
    import torch

    from quire.worker.arena import DTYPES, Arena
    from quire.worker.drafting import DraftModel, part_of
    from quire.worker.model import TorchModel, load
    from quire.worker.positions import fix_positions
    from quire.worker.processor import require_products
    from quire.worker.runner import TorchRunner
    from quire.worker.support import check_model

    require_products(TORCH_NAMES[dtype])
    arena = Arena(plan.stages[0], torch.device("cpu"))

    def model_of(own: Path, stage: StagePlan) -> TorchModel:
        weights = load(own, DTYPES[dtype.value], advance)
        fix_positions(weights, plan.max_length)
        check_model(weights, stage)
        return TorchModel(weights, Arena(stage, arena.bytes.device, arena.bytes))

    whole, guessing = plan.stages[0], _layers_of(draft, dtype)
    model = model_of(folder, part_of(whole, 0, whole.layers - guessing))
    guesser = None if draft is None else DraftModel(model_of(draft, part_of(whole, whole.layers - guessing, guessing)))
    return TorchRunner(plan, model, arena, grammars, guesser), lambda _tables: Started()


def _layers_of(draft: Path | None, dtype: DType) -> int:
    return 0 if draft is None else len(_shape_of(draft, dtype).layers)


def _on_gpu(
    folder: Path,
    plan: Plan,
    dtype: DType,
    grammars: Grammars,
    advance: Advance | None,
    draft: Path | None,
    compiled: bool,
    deterministic: bool,
    device: str = "cuda",
) -> tuple[TorchRunner, Callable[[Tables], Started]]:
    """Recordings need the engine's tables: they come last, and the ledger is complete then."""
    keep_compiled()
    import torch

    from quire.worker.arena import DTYPES
    from quire.worker.boot import boot, record
    from quire.worker.drafting import part_of
    from quire.worker.meter import Meter
    from quire.worker.model import load
    from quire.worker.positions import fix_positions
    from quire.worker.support import check_model

    meter = Meter(torch.device(device))
    whole, guessing = plan.stages[0], _layers_of(draft, dtype)

    def weights_of(own: Path, first_layer: int, layers: int) -> Any:
        weights = load(own, DTYPES[dtype.value], advance).to(meter.device)
        fix_positions(weights, plan.max_length)
        check_model(weights, part_of(whole, first_layer, layers))
        return weights

    weights = weights_of(folder, 0, whole.layers - guessing)
    others = None if draft is None else weights_of(draft, whole.layers - guessing, guessing)
    runner = boot(
        plan,
        weights,
        meter,
        grammars,
        is_compiled=compiled,
        is_deterministic=deterministic,
        draft=others,
        draft_layers=guessing,
    )

    def finish(tables: Tables) -> Started:
        record(runner, meter, tables)
        return Started(meter.lines(plan), runner.describe(), runner.graphs is not None, runner.kernels())

    return runner, finish


def _require_same_tokens(tokenizer: Tokenizer, folder: Path, guessing: Tokenizer, draft: Path) -> None:
    own, other = (one.inner.get_vocab(with_added_tokens=True) for one in (tokenizer, guessing))
    if own != other:
        differing = sum(own.get(text) != number for text, number in other.items())
        raise InputError(
            f"draft model {draft.name} numbers {differing:,} of its {len(other):,} tokens otherwise than "
            f"{folder.name}: guesses need the same tokenizer, so choose a draft model of the same family"
        )
