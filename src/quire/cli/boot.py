"""The plan that a server boots from: made for this machine, or read from a file and compared with the machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.build.machine import machine_of, of_each_rank
from quire.build.plan import plan_checkpoint, require_memory, run_settings, whole_machine
from quire.cli import options as common
from quire.cli import plan_arguments
from quire.cli.flags import add_draft_flags
from quire.cli.report import budget_line, print_plan
from quire.core.errors import InputError, PlanError
from quire.options.flags import flags
from quire.options.run import RunOptions
from quire.plan.file import layout_fingerprint
from quire.plan.plan import Plan
from quire.planner.again import settings_of
from quire.planner.document import document, load

if TYPE_CHECKING:
    from quire.fetch.find import Source

COMPARED = ("family", "kv_dtype", "sheet_bytes", "sheets", "pool_bytes", "max_length", "bytes_per_token")


def boot_plan(
    parsed: argparse.Namespace, source: Source, options: RunOptions, draft: Source | None = None
) -> tuple[Plan, str]:
    """The plan, and the machine that it is for. Prints the report. Raises before any weight is downloaded or read if it
    does not fit."""
    if parsed.plan is not None:
        _require_no_sizes(parsed)
        return _saved(parsed.plan, source, options, parsed.ignore_field, draft)
    settings = run_settings(plan_arguments.settings_of(parsed), options)
    machine = of_each_rank(machine_of(options.device), settings.tensor_parallel * settings.pipeline_parallel)
    budget = plan_arguments.budget_of(parsed, machine)
    plan = plan_checkpoint(source, settings, budget, options, parsed.ignore_field, draft=draft)
    print_plan(plan, document(plan), budget_line(budget))
    return plan, budget_line(budget)


def _require_no_sizes(parsed: argparse.Namespace) -> None:
    """A saved plan already has its sizes; sizes given with it would be ignored."""
    parser = argparse.ArgumentParser(add_help=False)
    common.add_memory_shape_options(parser, runs=True)
    add_draft_flags(parser)
    others = {flag.key for flag in flags(RunOptions) if not flag.is_in_plan}
    for name, default in vars(parser.parse_args([])).items():
        if name not in others and getattr(parsed, name) != default:
            option = "--" + name.replace("_", "-")
            raise InputError(
                f"{option} cannot be given with --plan, and the plan in {parsed.plan} has it already: leave one out"
            )


def _saved(
    path: Path, source: Source, options: RunOptions, ignore_fields: Sequence[str], draft: Source | None
) -> tuple[Plan, str]:
    """A plan of another model, dtype or layout is refused; other differences from what this machine would get are
    printed."""
    plan, saved = load(path)
    plan.require_fit()
    machine = of_each_rank(machine_of(options.device), len(plan.ranks))
    try:
        settings, budget = settings_of(plan), whole_machine(machine)
        here = plan_checkpoint(source, settings, budget, options, ignore_fields, draft=draft)
    except PlanError as error:
        served = f"{source.name} as it is served here, with or without a draft model"
        raise InputError(f"the plan in {path}, made for {plan.model}, does not suit {served}: {error}") from None
    differences = compare(document(plan), document(here) | {"kv_dtype": options.weights_dtype.value})
    if not str(saved.get("planned_for", "")).startswith(machine.name):
        differences["planned for"] = (saved.get("planned_for", "an unnamed device"), machine.name)
    planned_for = f"{saved.get('planned_for', 'an unnamed device')} (saved in {path})"
    print_plan(plan, document(plan), planned_for)
    print(f"\nThe plan compared with what {machine.name} would get: {'the same' if not differences else ''}")
    for name, (theirs, ours) in differences.items():
        print(f"  {name}: {theirs} in the file, {ours} here")
    _check(plan, here, machine.memory_bytes)
    return plan, planned_for


def compare(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Fields that differ, with both values."""
    return {name: (theirs[name], ours[name]) for name in COMPARED if theirs[name] != ours[name]}


def _check(plan: Plan, here: Plan, memory_bytes: int) -> None:
    mine, theirs = ([s.kinds for s in p.stages] for p in (here, plan))
    if mine != theirs:
        raise InputError(
            f"the plan of {plan.model} lays out its pages otherwise than this model would (layouts "
            f"{layout_fingerprint(plan)[:12]} and {layout_fingerprint(here)[:12]}): make it again from this folder"
        )
    planned, found = ([rope.rpartition(" ")[0] for rope in p.rope.split(", ")] for p in (plan, here))
    if planned != found:  # which of them the plan chose depends on its length
        raise InputError(
            f"the plan of {plan.model} has rotary frequencies {plan.rope or 'for any length'!r}, this model would have "
            f"{here.rope or 'for any length'!r}: make it again from this folder"
        )
    require_memory(plan, here, memory_bytes)
