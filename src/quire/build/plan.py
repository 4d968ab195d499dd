"""The first step: the plan of a checkpoint, for the device that runs it. What does not fit is refused here, before any
weight is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quire.build.limits import require_ranks, require_shared_memory, require_shared_weights
from quire.build.machine import Machine, available_bytes, machine_of, of_each_rank
from quire.core.dtypes import DType
from quire.core.errors import DoesNotFit, InputError
from quire.core.units import format_bytes
from quire.fetch.find import configuration
from quire.models.draft_model import with_draft_model
from quire.models.read import read_config
from quire.models.shape import ModelShape
from quire.models.weight_layout import WeightFormat
from quire.options.drafts import with_draft, with_draft_memory
from quire.options.run import RUN_KV_DTYPES, RunOptions
from quire.options.texts import names_of
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.planner.leases import require_lease_memory

if TYPE_CHECKING:
    from quire.fetch.find import Source


def run_settings(settings: Settings, options: RunOptions) -> Settings:
    """The settings as they are run: with the draft model's tokens, and keys and values in the data type of the weights
    unless another one was requested."""
    settings = with_draft(settings, options.draft_model, options.draft_tokens)
    settings = with_draft_memory(settings, options.draft_model, options.draft, options.draft_memory)
    if options.kv_dtype is not None:
        return replace(settings, kv_dtype=options.kv_dtype)
    return replace(settings, kv_dtype=options.weights_dtype) if settings.kv_dtype is DType.BF16 else settings


def plan_checkpoint(
    source: Source,
    settings: Settings,
    budget: Budget | None,
    options: RunOptions,
    ignore_fields: Sequence[str] = (),
    *,
    draft: Source | None = None,
) -> Plan:
    """Without a budget: all of the device. `ignore_fields`: fields of the configuration that do not affect memory.
    `draft`: the draft model, unless the options have its folder."""
    _require_runnable(settings, options)
    name, config = configuration(source)
    require_shared_weights(config, name, settings.tensor_parallel * settings.pipeline_parallel)
    shape = read_shape(source, options, ignore_fields)
    draft = options.draft_path if draft is None else draft
    if draft is not None:
        shape = with_draft_model(shape, read_shape(draft, options))
    ranks = settings.tensor_parallel * settings.pipeline_parallel
    budget = budget or whole_machine(of_each_rank(machine_of(options.device), ranks))
    return plan_shape(shape, settings, budget, options)


def plan_shape(shape: ModelShape, settings: Settings, budget: Budget, options: RunOptions) -> Plan:
    """The plan of a model, compared with the memory that the device has."""
    plan = make_plan(shape, settings, budget)
    require_lease_memory(plan, settings.lease_bytes)
    plan.require_fit()
    machine = machine_of(options.device)
    if options.device == "cpu":
        machine = replace(machine, memory_bytes=available_bytes())
    require_memory(plan, plan, of_each_rank(machine, len(plan.ranks)).memory_bytes)
    return plan


def read_shape(source: Source, options: RunOptions, ignore_fields: Sequence[str] = ()) -> ModelShape:
    """A checkpoint's shape, with its weights as they are held on the device."""
    name, config = configuration(source)
    held = WeightFormat(options.weights_dtype, options.device == "cpu", options.weights)
    shape = read_config(config, name, ignore_fields, held)
    return replace(shape, draft_layers=())  # no step runs them: tokens are drafted by other means


def require_memory(plan: Plan, like: Plan, available: int) -> None:
    """A plan's pool must fit into the bytes that each rank has, next to the weights as the plan `like` holds them."""
    pool, weights = (
        max(sum(line.bytes for line in rank.ledger if line.name == name) for rank in one.ranks)
        for one, name in ((plan, "pool"), (like, "weights"))
    )
    if pool + weights > available:
        raise DoesNotFit(
            f"a pool of {format_bytes(pool)} and weights of {format_bytes(weights)} exceed the "
            f"{format_bytes(available)} that this machine has left: lower the pool to "
            f"{format_bytes(max(0, available - weights))} or less"
        )


def whole_machine(machine: Machine) -> Budget:
    """The memory of a machine that Quire uses if no other amount is given."""
    return Budget(
        machine.memory_bytes,
        machine.memory_fraction,
        device=machine.name,
        is_accelerator=machine.is_accelerator,
        is_whole_device=True,
    )


def _require_runnable(settings: Settings, options: RunOptions) -> None:
    require_ranks(settings.tensor_parallel, settings.pipeline_parallel, options)
    require_shared_memory(settings)
    if settings.kv_dtype not in RUN_KV_DTYPES:
        known = names_of(RUN_KV_DTYPES)
        raise InputError(f"no kernel here reads keys and values as {settings.kv_dtype.value}: choose one of {known}")
    if options.draft_path is not None and not settings.speculative_tokens:
        raise InputError(
            f"nothing is planned for the guesses of {options.draft_path.name}: plan with --draft-model and "
            "--draft-tokens"
        )
