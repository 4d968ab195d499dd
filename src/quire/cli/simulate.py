"""The engine on virtual time: how a model would serve a trace, without the model and without the device.

What runs is the real scheduler on the real plan; a cost model says how long each step takes (docs/simulate.md).
Exit 0: played to the end. Exit 3: the plan does not fit. Exit 2: cannot be understood.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.cli import options as common
from quire.cli import plan_arguments
from quire.cli.flags import add_inspect_options, reading
from quire.cli.text import bold, heading, table
from quire.core.errors import InputError
from quire.core.rules import Policy, Rules
from quire.core.units import format_bytes
from quire.models.shape import ModelShape
from quire.options.texts import positive
from quire.plan.make import make_plan
from quire.planner.document import is_plan_file
from quire.route.policies import POLICIES
from quire.simulate.synthetic import DEFAULT_REQUESTS, SORTS, make_trace
from quire.simulate.traces import Trace, read_trace

if TYPE_CHECKING:
    from quire.simulate.replay import Progress
    from quire.simulate.replica import Hardware
    from quire.simulate.tier import HostCost

SYNTHETIC = "synthetic:"
PLOT_FORMATS = (".svg", ".png")
FIXED = ("help", "json", "plot", "compare", "inspect", "port")
"""Not settings of a run: --compare does not change them."""
BAR_CELLS = 40
MOST_REPLICAS = 256
ROUTERS = tuple(POLICIES)
BY_REPLICA = "requests by replica, least / most"
LOADS = ("loads_done", "loads_failed", "loads_gone", "loads_late")


@reading
def _number_of_replicas(text: str) -> int:
    if (number := positive(text)) > MOST_REPLICAS:
        raise InputError(f"{text} is out of range: give at most {MOST_REPLICAS}")
    return number


def _number(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"{text!r} is not a number") from None
        if not least <= value <= most:
            raise InputError(f"{text} is out of range: give at least {least:g}, at most {most:,.0f}")
        return value

    return reading(read)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_planning_options(parser)
    _add_load_options(parser.add_argument_group("load"))
    _add_cost_options(parser.add_argument_group("cost model"))
    output = parser.add_argument_group("output")
    output.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="SETTING=VALUE",
        help="run again with this setting and compare (may be repeated)",
    )
    output.add_argument("--json", action="store_true", help="print JSON (docs/simulate.md) instead of the report")
    output.add_argument(
        "--plot", type=Path, metavar="FILE.svg|png", help="plot waiting times and memory (needs matplotlib)"
    )
    add_inspect_options(output)


def _add_load_options(group: argparse._ArgumentGroup) -> None:
    whole, seed = reading(positive), reading(common.seed)
    sorts = ", ".join(SYNTHETIC + sort for sort in SORTS)
    trace = f"trace to replay: a Mooncake or Azure file, or {sorts} (default synthetic:chat)"
    requests = f"use the first N requests (default: all; {DEFAULT_REQUESTS} of a synthetic trace)"
    replicas = f"engines, each on devices of its own, that share the trace (default 1, at most {MOST_REPLICAS})"
    router = f"which replica gets a request, with --replicas (docs/replicas.md; default {ROUTERS[0]})"
    policies, default = [policy.value for policy in Policy], Rules().policy.value
    group.add_argument("--trace", default=SYNTHETIC + "chat", metavar="FILE|synthetic:SORT", help=trace)
    group.add_argument("--requests", type=whole, metavar="N", help=requests)
    group.add_argument(
        "--rate", type=_number(1e-6, 1e6), metavar="R", help="arrivals per second (default: the trace's)"
    )
    group.add_argument("--seed", type=seed, default=0, metavar="S", help="random seed of synthetic traces (default 0)")
    group.add_argument("--replicas", type=_number_of_replicas, default=1, metavar="N", help=replicas)
    group.add_argument("--router", choices=ROUTERS, default=ROUTERS[0], help=router)
    overlap = "steps in flight, at least one for each pipeline stage; 1: one at a time (default 2)"
    group.add_argument("--overlap", type=whole, default=2, metavar="N", help=overlap)
    group.add_argument("--policy", choices=policies, default=default, help=f"queueing policy (default {default})")


def _add_cost_options(group: argparse._ArgumentGroup) -> None:
    speed, share = _number(1e-6, 1e6), _number(1e-6, 1)
    group.add_argument("--bandwidth", type=speed, metavar="GB/S", help="memory bandwidth of one device")
    group.add_argument("--flops", type=speed, metavar="TFLOP/S", help="compute throughput of one device")
    group.add_argument(
        "--host-bandwidth",
        type=speed,
        default=50.0,
        metavar="GB/S",
        help="bandwidth of loads from --host-memory (default 50)",
    )
    group.add_argument(
        "--tier-faults",
        type=reading(common.seed),
        metavar="S",
        help="inject faults with this seed: failed and late loads, tier outages",
    )
    link = "bandwidth from one pipeline stage to the next (default 50)"
    group.add_argument("--link-bandwidth", type=speed, default=50.0, metavar="GB/S", help=link)
    overhead = "fixed time of each step (default 0.04 per layer)"
    group.add_argument("--overhead", type=_number(0, 1e6), metavar="MS", help=overhead)
    group.add_argument(
        "--active-share", type=share, metavar="F", help="fraction of the weights used per token (default: the model's)"
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """One run with its settings parsed: what will be simulated, and how it is labelled."""

    about: dict[str, Any]
    hardware: Hardware
    trace: Trace
    replicas: int
    router: str
    model: ModelShape


def run(options: argparse.Namespace) -> None:
    from quire.simulate.replay import Fleet
    from quire.simulate.report import report

    if options.plot and options.plot.suffix not in PLOT_FORMATS:
        raise InputError(f"--plot {options.plot}: the name must end in {' or '.join(PLOT_FORMATS)}")
    if options.inspect:
        _inspect(options)
        return
    settings = {"as asked": options} | {setting: _changed(options, setting) for setting in options.compare}
    runs = {setting: _prepared(changed) for setting, changed in settings.items()}
    played = {
        setting: Fleet(run.hardware, run.trace, POLICIES[run.router](), run.replicas).play(progress_bar(setting))
        for setting, run in runs.items()
    }
    reports = [{"setting": setting, **runs[setting].about, **report(played[setting])} for setting in runs]
    if options.plot:
        from quire.simulate.plot import draw

        draw(played, f"{reports[0]['model']}, {reports[0]['trace']}", options.plot)
    if options.json:
        json.dump({"schema": "quire.simulation/1", "runs": reports}, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_reports(reports)


def _inspect(options: argparse.Namespace) -> None:
    """Records the run as a server would, and opens the inspector over the recording."""
    from quire.inspect.local import serve
    from quire.inspect.recorded import Recorded
    from quire.simulate.replay import Fleet
    from quire.simulate.report import report

    if options.replicas > 1 or options.compare or options.json:
        raise InputError("--inspect shows one engine: leave out --replicas, --compare and --json")
    run = _prepared(options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "simulation.jsonl"
        hardware = replace(run.hardware, record=path)
        fleet = Fleet(hardware, run.trace, POLICIES[run.router](), 1)
        played = fleet.play(progress_bar("as asked"))
        fleet.replicas[0].engine.close()
        print_reports([{"setting": "as asked", **run.about, **report(played)}])
        print()
        serve(Recorded(path, "simulation", run.model), options.port)


def _changed(options: argparse.Namespace, setting: str) -> argparse.Namespace:
    """The same run with one setting changed, parsed like the option of that name."""
    name, given, value = setting.partition("=")
    known = {(action.option_strings or [action.dest])[-1].lstrip("-"): action for action in options.parser._actions}
    action = known.get(name)
    if action is None or action.dest in FIXED or not given:
        raise InputError(f"--compare {setting!r} is not a setting and its value: write it like batch-tokens=2048")
    try:
        parsed = action.type(value) if callable(action.type) else value
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise InputError(f"--compare {setting}: {error}") from None
    if action.choices is not None and parsed not in action.choices:
        raise InputError(f"--compare {setting}: choose {', '.join(map(str, action.choices))}")
    changed = copy.copy(options)
    setattr(changed, action.dest, [parsed] if isinstance(action.default, list) else parsed)
    return changed


def _prepared(options: argparse.Namespace) -> _Run:
    from quire.simulate.cost import cost_model
    from quire.simulate.devices import speed_of
    from quire.simulate.replica import Hardware

    if is_plan_file(Path(options.model)):
        raise InputError(f"{options.model} is a saved plan: give the model that it was made from")
    budget = plan_arguments.budget_of(options)
    speed = speed_of(options.device, options.bandwidth, options.flops)
    held = plan_arguments.weight_format_of(options, budget)
    model = plan_arguments.shape_of(options.model, options.ignore_field, held)
    plan = make_plan(model, plan_arguments.settings_of(options, held), budget).require_fit()
    overhead = None if options.overhead is None else options.overhead / 1e3
    link = options.link_bandwidth * 1e9
    cost = cost_model(plan, model, speed, overhead, options.active_share, link_bytes_per_second=link)
    trace = _trace(options)
    about = {
        "model": model.name,
        "device": options.device,
        "devices": len(plan.ranks),
        "stages": plan.pipeline_parallel,
        "trace": trace.name,
        "policy": options.policy,
        "replicas": options.replicas,
        "router": options.router if options.replicas > 1 else None,
        "cost": cost.figures(),
    }
    hardware = Hardware(plan, cost, Rules(policy=Policy(options.policy)), _host(options), options.overlap)
    return _Run(about, hardware, trace, options.replicas, options.router, model)


def _host(options: argparse.Namespace) -> HostCost | None:
    from quire.simulate.tier import HostCost

    if options.host_memory is None:
        if options.tier_faults is not None:
            raise InputError("--tier-faults needs a tier to fail: give --host-memory too")
        return None
    return HostCost(options.host_bandwidth * 1e9, options.tier_faults)


def _trace(options: argparse.Namespace) -> Trace:
    source: str = options.trace
    if source.startswith(SYNTHETIC):
        trace = make_trace(source.removeprefix(SYNTHETIC), options.requests or DEFAULT_REQUESTS, options.seed)
    else:
        trace = read_trace(Path(source), options.requests)
    return trace if options.rate is None else trace.at_rate(options.rate)


def progress_bar(name: str) -> Progress:
    """One line on standard error that is rewritten; nothing if that is not a terminal."""
    shown = -1

    def show(done: int, total: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and (cells := BAR_CELLS * done // total) != shown:
            shown = cells
            bar = "█" * cells + "░" * (BAR_CELLS - cells)
            end = "\r\x1b[K" if done == total else ""
            print(f"\r{bar} {done:,} of {total:,} requests, {name}{end}", end="", file=sys.stderr, flush=True)

    return show


def print_reports(reports: Sequence[dict[str, Any]]) -> None:
    """One column for each run; values that are the same for all come first."""
    first = reports[0]
    cost = first["cost"]
    replicas = f"{first['replicas']} replicas, each " if first["replicas"] > 1 else ""
    print(f"{bold(first['model'])} on {replicas}{first['devices']} × {first['device'] or 'a device'}, {first['trace']}")
    print(
        f"  {cost['bytes_per_second'] / 1e12:.2f} TB/s, {cost['flops_per_second'] / 1e12:,.0f} TFLOP/s and "
        f"{format_bytes(cost['weight_bytes'])} of weights per device, {cost['active_share']:.1%} of them in a token; "
        f"{cost['overhead_seconds'] * 1e3:g} ms overhead a step" + _stages(first)
    )
    print()
    head = ("", *(str(one["setting"]) for one in reports))
    lines = LINES if any(one["replicas"] > 1 for one in reports) else [line for line in LINES if line[0] != BY_REPLICA]
    table(head, [(name, *(write(one) for one in reports)) for name, write in lines])
    if any(one["tier"] for one in reports):
        heading("Host tier")
        cells = [(name, *(write(one["tier"]) if one["tier"] else "–" for one in reports)) for name, write in TIER_LINES]
        table(head, cells)
    heading(f"Memory of one device ({first['setting']})")
    table(
        ("kind", "held, mean", "held, most", "cached, mean", "cached, most"),
        [_memory(line) for line in first["memory"]],
    )
    if any(one["tenants"] for one in reports):
        heading("ms to first token, p95, by tenant")
        names = sorted({name for one in reports for name in one["tenants"]})
        table(("tenant", *head[1:]), [(name, *(_tenant(one, name) for one in reports)) for name in names])


def _stages(one: dict[str, Any]) -> str:
    link = one["cost"]["link_bytes_per_second"]
    return f"; {one['stages']} stages, {link / 1e9:g} GB/s from one to the next" if one["stages"] > 1 else ""


def _missed(one: dict[str, Any], *causes: str) -> str:
    return " / ".join(f"{one['missed'][cause]:.2%}" for cause in causes)


def _milliseconds_of(field: str) -> Callable[[dict[str, Any]], str]:
    def write(one: dict[str, Any]) -> str:
        return " / ".join("–" if value is None else f"{1e3 * value:,.1f}" for value in one[field].values())

    return write


LINES: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("requests finished", lambda one: f"{one['finished']:,}"),
    ("refused (never fit)", lambda one: f"{one['refused']:,}"),
    ("rejected at first (queue full)", lambda one: f"{one['turned_away']:,}"),
    (BY_REPLICA, lambda one: f"{min(one['routed']):,} / {max(one['routed']):,}"),
    ("virtual seconds", lambda one: f"{one['virtual_seconds']:,.1f}"),
    ("device busy", lambda one: f"{one['busy_share']:.1%}"),
    ("steps", lambda one: f"{one['steps']:,}"),
    ("tokens a step", lambda one: f"{one['tokens_per_step']:,.1f}"),
    ("output tokens a second", lambda one: f"{one['output_tokens_per_second']:,.1f}"),
    ("prompt and output tokens a second", lambda one: f"{one['total_tokens_per_second']:,.1f}"),
    ("ms to first token, p50 / p95 / p99", _milliseconds_of("seconds_to_first_token")),
    ("ms between tokens, p50 / p95 / p99", _milliseconds_of("seconds_between_tokens")),
    ("prompt tokens reused", lambda one: f"{one['hit_rate']:.2%}"),
    ("… with an unlimited cache", lambda one: f"{one['hit_rate_ceiling']:.2%}"),
    ("… shared with earlier requests", lambda one: f"{one['hit_rate_shared']:.2%}"),
    ("… computed again: never kept / tail evicted", lambda one: _missed(one, "never_kept", "tail_evicted")),
    ("… … evicted / evicted while it waited", lambda one: _missed(one, "evicted", "evicted_waiting")),
    ("… in whole units of", lambda one: f"{one['match_unit_tokens']} tokens"),
    ("preemptions", lambda one: f"{one['preemptions']:,}"),
    ("evictions", lambda one: f"{one['evictions']:,}"),
    ("… tokens evicted", lambda one: f"{one['evicted_tokens']:,}"),
)


TIER_LINES: tuple[tuple[str, Callable[[dict[str, int]], str]], ...] = (
    ("loads done / failed / gone / late", lambda one: " / ".join(f"{one[name]:,}" for name in LOADS)),
    ("tokens loaded", lambda one: f"{one['loaded_tokens']:,}, {format_bytes(one['loaded_bytes'])}"),
    ("records stored", lambda one: f"{one['stored_records']:,}, {format_bytes(one['stored_bytes'])}"),
    ("… not stored", lambda one: f"{one['not_stored']:,}"),
    ("outages", lambda one: f"{one['outages']:,}"),
)


def _memory(line: dict[str, Any]) -> tuple[str, ...]:
    """Pages and bytes of what requests hold, and of what only the cache keeps."""
    name = line["kind"] + (f" of stage {line['stage']}" if line["stage"] else "")
    uses = [
        (line[f"{who}_{what}_pages"], line[f"{who}_{what}_bytes"])
        for who in ("held", "cached")
        for what in ("mean", "peak")
    ]
    return (name, *(f"{pages:,.0f} pages, {format_bytes(size)}" for pages, size in uses))


def _tenant(one: dict[str, Any], name: str) -> str:
    value = one["tenants"].get(name, {}).get("seconds_to_first_token", {}).get("p95")
    return "–" if value is None else f"{1e3 * value:,.1f}"
