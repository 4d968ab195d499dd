"""From a model's configuration to an exact memory plan, without a GPU.

Exit 0: it fits. Exit 3: understood, but it does not fit (the shortfall and settings that would fit are printed).
Exit 2: cannot be understood.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from quire.cli import options as common
from quire.cli.report import budget_line, print_plan
from quire.core.errors import InputError
from quire.core.units import parse_tokens
from quire.models.read import read_model
from quire.plan.advice import ways_to_fit
from quire.plan.document import document
from quire.plan.file import is_plan_file, load, save
from quire.plan.make import make_plan
from quire.plan.reverse import Target, reverse
from quire.plan.workload import EXAMPLE, Served, parse_workload, serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_planning_options(parser)
    questions = parser.add_argument_group("questions")
    tokens = common.reading(parse_tokens)
    questions.add_argument("--target-length", type=tokens, metavar="L", help="the pool and devices needed for …")
    questions.add_argument("--target-requests", type=tokens, metavar="N", help="… so many requests of that length")
    workload = common.reading(parse_workload)
    questions.add_argument("--workload", type=workload, metavar="SPEC", help=f"how many users: {EXAMPLE}")
    output = parser.add_argument_group("output")
    rows = common.reading(common.lengths)
    output.add_argument(
        "--lengths", type=rows, metavar="N,N…", help="rows of the tables (default 1k,8k,32k,128k, longest)"
    )
    output.add_argument("--explain", action="store_true", help="print the arithmetic with the model's own field names")
    output.add_argument("--json", action="store_true", help="the documented JSON on standard output")
    output.add_argument("--output", type=Path, metavar="FILE", help="save the plan, to boot from later")
    output.add_argument("--plot", type=Path, metavar="FILE.svg|png", help="draw the plan (needs quire[plot])")


def run(options: argparse.Namespace) -> int:
    if is_plan_file(Path(options.model)):
        return _show_saved(options)
    if (options.target_length is None) != (options.target_requests is None):
        raise InputError("--target-length and --target-requests belong together: give both")
    settings, budget = common.settings_of(options), common.budget_of(options)
    model = read_model(options.model, ignore_fields=options.ignore_field)
    plan = make_plan(model, settings, budget)
    data = document(plan, options.lengths)
    offers = [] if plan.fits else ways_to_fit(model, settings, budget, plan)
    target = None
    if options.target_length is not None:
        target = reverse(model, settings, budget, plan, options.target_length, options.target_requests)
    served = serve(plan, options.workload) if options.workload else None
    data |= _answers(offers=[f"{o.option}: {o.effect}" for o in offers], target=target, served=served)
    if options.output:
        save(data, options.output)
    if options.plot:
        from quire.cli.plot import draw

        draw(plan, data, options.plot)
    if options.json:
        json.dump(data, sys.stdout, indent=1)
        print()
    else:
        print_plan(plan, data, budget_line(budget), offers, target, served, budget.memory_bytes is not None)
        if options.explain:
            from quire.cli.explain import print_explanation

            print_explanation(model, plan)
    if not plan.fits:
        print(f"quire: {plan.model} does not fit: {plan.problem}", file=sys.stderr)
        return 3
    return 0


def _show_saved(options: argparse.Namespace) -> int:
    """A plan that was saved with --output: verified, then shown as it was made."""
    plan = load(Path(options.model))
    data = document(plan, options.lengths)
    if options.json:
        json.dump(data, sys.stdout, indent=1)
        print()
    else:
        print_plan(plan, data, f"the plan saved in {options.model}")
    return 0 if plan.fits else 3


def _answers(offers: list[str], target: Target | None, served: Served | None) -> dict[str, Any]:
    def plain(value: Target | Served | None) -> dict[str, Any] | None:
        return None if value is None else {name: getattr(value, name) for name in value.__slots__}

    return {"would_fit": offers, "target": plain(target), "served": plain(served)}
