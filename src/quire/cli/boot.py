"""The plan that a server boots from: made for this machine, or read from a file and held against the machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire.build.assemble import memory_of, plan_folder, require_memory
from quire.build.machine import machine_of
from quire.cli import asked
from quire.cli import options as common
from quire.cli.report import budget_line, print_plan
from quire.core.dtypes import DType
from quire.core.errors import InputError, PlanError
from quire.plan.file import layout_fingerprint
from quire.plan.plan import Plan
from quire.plan.settings import Settings
from quire.planner.document import document, load

BESIDE_A_PLAN = ("device", "compile", "deterministic", "host_memory", "draft_model")
"""Where it runs and how fast; what tiers take; a draft model is loaded beside what the plan says of it."""
COMPARED = ("family", "kv_dtype", "sheet_bytes", "sheets", "pool_bytes", "max_length", "bytes_per_token")


def boot_plan(
    options: argparse.Namespace, folder: Path, dtype: DType, draft: Path | None = None, device: str = "cpu"
) -> tuple[Plan, str]:
    """Prints its report. Raises before any weight is read if it does not fit."""
    machine = machine_of(device)
    if options.plan is not None:
        _check_alone(options)
        return _saved(options.plan, folder, dtype, options.ignore_field, draft, device)
    if options.kv_dtype is None:
        options = argparse.Namespace(**{**vars(options), "kv_dtype": dtype})
    settings, budget = asked.with_draft(options, asked.settings_of(options)), asked.budget_of(options, machine)
    plan = plan_folder(folder, settings, budget, dtype, options.ignore_field, draft, device)
    print_plan(plan, document(plan), budget_line(budget))
    return plan, budget_line(budget)


def _check_alone(options: argparse.Namespace) -> None:
    """A saved plan has its sizes already; one beside it would go unheard."""
    parser = argparse.ArgumentParser(add_help=False)
    common.add_memory_shape_options(parser, runs=True)
    common.add_draft_options(parser)
    parser.set_defaults(kv_dtype=None)
    for name, default in vars(parser.parse_args([])).items():
        if name not in BESIDE_A_PLAN and getattr(options, name) != default:
            option = "--" + name.replace("_", "-")
            raise InputError(
                f"{option} stands beside --plan, and the plan in {options.plan} has it already: leave one out"
            )


def _saved(
    path: Path, folder: Path, dtype: DType, ignore_fields: Sequence[str], draft: Path | None, device: str
) -> tuple[Plan, str]:
    """A plan of another model, dtype or layout is refused; other differences from what this machine would get are
    printed."""
    plan, saved = load(path)
    plan.require_fit()
    machine = machine_of(device)
    try:
        here = plan_folder(folder, _settings_of(plan), memory_of(machine), dtype, ignore_fields, draft, device)
    except PlanError as error:
        served = f"{folder.name} as it is served here, with or without a draft model"
        raise InputError(f"the plan in {path}, made for {plan.model}, does not suit {served}: {error}") from None
    differences = compare(document(plan), document(here))
    planned_for = f"{saved.get('planned_for', 'an unnamed device')} (saved in {path})"
    print_plan(plan, document(plan), planned_for)
    print(f"\nThe plan beside what {machine.name} would get: {'the same' if not differences else ''}")
    for name, (theirs, ours) in differences.items():
        print(f"  {name}: {theirs} in the file, {ours} here")
    _check(plan, here, machine.memory_bytes)
    return plan, planned_for


def compare(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Fields that differ, with both values."""
    return {name: (theirs[name], ours[name]) for name in COMPARED if theirs[name] != ours[name]}


def _settings_of(plan: Plan) -> Settings:
    """What the plan was made with, as far as it shapes pages; its length and its pool are the machine's to answer."""
    pages = {kind.name: kind.page_tokens for stage in plan.stages for kind in stage.kinds if kind.kind.kind != "state"}
    return Settings(
        max_requests=plan.max_requests,
        batch_tokens=plan.batch_tokens,
        kv_dtype=DType(plan.kv_dtype),
        state_dtype=DType(plan.state_dtype) if plan.state_dtype else None,
        page_tokens=pages,
        match_unit_tokens=plan.match_unit_tokens,
        host_block_tokens=plan.host_block_tokens,
        reserved_pages=plan.reserved_pages,
        speculative_tokens=plan.lookahead,
    )


def _check(plan: Plan, here: Plan, memory_bytes: int) -> None:
    mine, theirs = ([s.kinds for s in p.stages] for p in (here, plan))
    if mine != theirs:
        raise InputError(
            f"the plan of {plan.model} lays out its pages otherwise than this model would (layouts "
            f"{layout_fingerprint(plan)[:12]} and {layout_fingerprint(here)[:12]}): make it again from this folder"
        )
    planned, found = ([rope.rpartition(" ")[0] for rope in p.rope.split(", ")] for p in (plan, here))
    if planned != found:  # which of them the plan chose is its own length's business
        raise InputError(
            f"the plan of {plan.model} has rotary frequencies {plan.rope or 'for any length'!r}, this model would have "
            f"{here.rope or 'for any length'!r}: make it again from this folder"
        )
    require_memory(plan, here, memory_bytes)
