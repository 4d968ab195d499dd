"""What each setting would change about a plan, one at a time."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from quire.cli import options as common
from quire.cli import plan_arguments
from quire.cli.text import bold, table
from quire.core.errors import InputError
from quire.core.units import format_tokens
from quire.planner.document import is_plan_file
from quire.planner.whatif import REFERENCE_LENGTHS, Outcome, what_if


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_planning_options(parser)
    parser.add_argument("--json", action="store_true", help="a list of outcomes on standard output")


def run(options: argparse.Namespace) -> None:
    if is_plan_file(Path(options.model)):
        raise InputError(f"{options.model} is a saved plan: give the model that it was made from")
    budget = plan_arguments.budget_of(options)
    held = plan_arguments.weight_format_of(options, budget)
    model = plan_arguments.shape_of(options.model, options.ignore_field, held)
    settings = plan_arguments.settings_of(options, held)
    outcomes = what_if(model, settings, budget)
    options.exit_code = 0 if outcomes[0].fits else 3
    if options.json:
        json.dump([{name: getattr(o, name) for name in o.__slots__} for o in outcomes], sys.stdout, indent=1)
        print()
    else:
        print(f"{bold(model.name)}, planned for {budget.device}; each line changes one setting")
        rows = [_row(outcome, outcomes[0]) for outcome in outcomes]
        lengths = (f"requests at {format_tokens(length)}" for length in REFERENCE_LENGTHS)
        table(("setting", "longest length", *lengths, "waste at 8k", ""), rows, left=(0, 5))
        if settings.max_requests < max(most for outcome in outcomes for most in outcome.concurrency):
            print(f"requests: what the pool holds; --max-requests {settings.max_requests:,} lets no more run at once")


def _row(outcome: Outcome, base: Outcome) -> tuple[str, ...]:
    if outcome.problem and not outcome.max_length:
        return (outcome.option, "–", *("–" for _ in REFERENCE_LENGTHS), "–", outcome.problem)
    held = (f"{now:,}{_change(now, before)}" for now, before in zip(outcome.concurrency, base.concurrency, strict=True))
    length = f"{outcome.max_length:,}{_change(outcome.max_length, base.max_length)}"
    return (outcome.option, length, *held, f"{outcome.waste:.4f}", "" if outcome.fits else "does not fit")


def _change(now: int, before: int) -> str:
    return f" ({now / before - 1:+.0%})" if before and now != before else ""
