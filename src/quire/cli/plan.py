"""From a model's configuration to an exact memory plan, without a GPU.

Exit 0: it fits; with --target-…: there are devices that hold the target, one or many. Exit 3: understood, but it does
not fit (the shortfall and settings that would fit are printed). Exit 2: cannot be understood.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from quire.cli import options as common
from quire.cli import plan_arguments
from quire.cli.flags import add_draft_flags, reading
from quire.cli.report import budget_line, print_plan
from quire.core.errors import InputError
from quire.core.units import format_count
from quire.models.draft_model import with_draft_model
from quire.options.drafts import with_draft, with_draft_memory
from quire.options.texts import parse_tokens, positive
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.planner.advice import Offer, ways_to_fit
from quire.planner.document import document, is_plan_file, load, save
from quire.planner.leases import require_lease_memory
from quire.planner.reverse import Target, reverse
from quire.planner.workload import EXAMPLE, Served, parse_workload, serve

PLOT_FORMATS = (".svg", ".png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_planning_options(parser, shows_saved_plans=True)
    add_draft_flags(parser)
    questions = parser.add_argument_group("questions")
    tokens = reading(parse_tokens)
    questions.add_argument(
        "--target-length",
        type=tokens,
        metavar="L",
        help="print the pool and the devices needed for requests of L tokens",
    )
    questions.add_argument(
        "--target-requests",
        type=reading(positive),
        metavar="N",
        help="with --target-length: number of concurrent requests",
    )
    questions.add_argument(
        "--compare-devices",
        type=_devices,
        metavar="NAME,NAME…|all",
        help="print one table of the configurations that Quire runs on these devices, for requests of --target-length "
        "tokens (default 8k), with the replicas that --target-requests need",
    )
    workload = reading(parse_workload)
    questions.add_argument(
        "--workload", type=workload, metavar="SPEC", help=f"print how many users a workload allows: {EXAMPLE}"
    )
    output = parser.add_argument_group("output")
    rows = reading(common.lengths)
    output.add_argument(
        "--lengths",
        type=rows,
        metavar="N,N…",
        help="request lengths shown in the tables (default 1k,8k,32k,128k, longest)",
    )
    output.add_argument("--explain", action="store_true", help="print the arithmetic with the model's own field names")
    output.add_argument("--json", action="store_true", help="print JSON (docs/plan.md) instead of the report")
    output.add_argument("--output", type=Path, metavar="FILE", help="save the plan for quire serve --plan")
    output.add_argument("--plot", type=Path, metavar="FILE.svg|png", help="draw the plan (needs matplotlib)")
    output.add_argument("--html", type=Path, metavar="FILE", help="write the plan as a page that needs no other file")


@reading
def _devices(text: str) -> tuple[str, ...]:
    from quire.cli.compare import devices_of

    return devices_of(text)


def run(options: argparse.Namespace) -> None:
    if options.compare_devices is not None:
        from quire.cli import compare

        compare.run(options)
        return
    if is_plan_file(Path(options.model)):
        _show_saved(options)
        return
    _check(options)
    budget = plan_arguments.budget_of(options)
    held = plan_arguments.weight_format_of(options, budget)
    settings = with_draft(plan_arguments.settings_of(options, held), options.draft_model, options.draft_tokens)
    settings = with_draft_memory(settings, options.draft_model, options.draft, options.draft_memory)
    model = plan_arguments.shape_of(options.model, options.ignore_field, held)
    model = (
        model
        if options.draft_model is None
        else with_draft_model(model, plan_arguments.shape_of(options.draft_model, (), held))
    )
    plan = make_plan(model, settings, budget)
    require_lease_memory(plan, settings.lease_bytes)
    offers = [] if plan.fits else [_placed(one, options.device) for one in ways_to_fit(model, settings, budget, plan)]
    target = None
    if options.target_length is not None:
        target = reverse(model, settings, budget, plan, options.target_length, options.target_requests)
    served = serve(plan, options.workload) if options.workload else None
    answers = _answers(offers=[f"{o.option}: {o.effect}" for o in offers], target=target, served=served)
    data = document(plan, options.lengths) | {"planned_for": budget_line(budget)} | answers
    _write_files(options, plan, data)
    if target is None:
        _say_whether_it_fits(options, plan)
    elif target.fleet is None and budget.memory_bytes is not None:
        _say_that_none_holds(options, plan, target)
    if options.json:
        _print_json(data)
        return
    print_plan(plan, data, budget_line(budget), offers, target, served, budget.memory_bytes is not None)
    if options.explain:
        from quire.cli.arithmetic import print_explanation

        print_explanation(model, plan)


def _check(options: argparse.Namespace) -> None:
    """Refuses what it can before anything is read or written."""
    if (options.target_length is None) != (options.target_requests is None):
        raise InputError("--target-length and --target-requests belong together: give both")
    if options.explain and options.json:
        raise InputError("--explain prints text: leave out --json, whose fields have the numbers")
    if options.plot and options.plot.suffix not in PLOT_FORMATS:
        raise InputError(f"--plot {options.plot}: the name must end in {' or '.join(PLOT_FORMATS)}")


def _say_whether_it_fits(options: argparse.Namespace, plan: Plan) -> None:
    """Before the report, so that the verdict stands even if the reader of the report stops early."""
    if not plan.fits:
        options.exit_code = 3
        print(f"quire: {plan.model} does not fit: {plan.problem}", file=sys.stderr)


def _say_that_none_holds(options: argparse.Namespace, plan: Plan, target: Target) -> None:
    """With a target, one engine that does not fit is not a failure: the report says so."""
    options.exit_code = 3
    whom = f"even one request of {format_count(target.length, 'token')} of {plan.model}"
    why = f"; of one: {plan.problem}" if plan.problem else ""
    print(f"quire: no number of ranks and stages that we try holds {whom} on such devices{why}", file=sys.stderr)


def _show_saved(options: argparse.Namespace) -> None:
    """A plan that was saved with --output: verified, then shown as it was made."""
    for name, value in vars(options).items():
        if name not in ("model", "json", "html", "lengths", "command", "exit_code", "run", "parser"):
            default = options.parser.get_default(name)
            if value != default:
                option = "--" + name.replace("_", "-")
                raise InputError(f"{options.model} is a saved plan: leave out {option}, or plan its model again")
    plan, saved = load(Path(options.model))
    lengths = options.lengths or [int(length) for length in saved["waste"]]
    data = document(plan, lengths) | {"planned_for": saved.get("planned_for", "an unnamed device")}
    _say_whether_it_fits(options, plan)
    if options.html:
        _write_page(options.html, data)
    if options.json:
        _print_json(data)
    else:
        print_plan(plan, data, f"{data['planned_for']} (saved in {options.model})")


def _write_files(options: argparse.Namespace, plan: Plan, data: dict[str, Any]) -> None:
    if options.output:
        save(data, options.output)
    if options.plot:
        from quire.cli.plot import draw

        draw(plan, data, options.plot)
    if options.html:
        _write_page(options.html, data)


def _write_page(path: Path, data: dict[str, Any]) -> None:
    from quire.inspect.plan_page import plan_page

    try:
        path.write_text(plan_page(data), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _print_json(data: dict[str, Any]) -> None:
    json.dump(data, sys.stdout, indent=1, allow_nan=False)
    print()


def _placed(offer: Offer, device: str | None) -> Offer:
    """A memory replaces the device, instead of being added to it."""
    if device is None or not offer.option.startswith("--memory"):
        return offer
    return replace(offer, effect=f"instead of --device {device}; {offer.effect}")


def _answers(offers: list[str], target: Target | None, served: Served | None) -> dict[str, Any]:
    return {
        "would_fit": offers,
        "target": None if target is None else asdict(target),
        "served": None if served is None else asdict(served),
    }
