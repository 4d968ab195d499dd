"""`quire plan --compare-devices`: one table over the configurations that Quire can run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from quire.cli import plan_arguments
from quire.cli.text import bold, table
from quire.core.errors import InputError
from quire.core.units import format_count
from quire.models.draft_model import with_draft_model
from quire.options.drafts import with_draft
from quire.planner.devices import device_bytes
from quire.simulate.compare import TRIED, Configuration, LeftOut, compare
from quire.simulate.devices import speed_of

LENGTH = 8192
ALL = "all"
SIZES = ("device", "memory", "memory_fraction", "pool", "sheets")
RANKS = ("tensor_parallel", "pipeline_parallel", "stage_layers")
REPORTS = ("workload", "explain", "output", "plot", "lengths", "kv_dtype")
NOTE = "tokens/s: of all replicas when full; first token: of such a prompt on an idle replica; both by the cost model"


def devices_of(text: str) -> tuple[str, ...]:
    if text.strip() == ALL:
        return TRIED
    names = [one.strip().lower().replace("_", "-") for one in text.split(",")]
    for name in names:
        device_bytes(name)
        speed_of(name, None, None)
    return tuple(dict.fromkeys(names))


def run(options: argparse.Namespace) -> None:
    _check(options)
    length = options.target_length or LENGTH
    planned = argparse.Namespace(**{**vars(options), "device": options.compare_devices[0]})
    held = plan_arguments.weight_format_of(planned, plan_arguments.budget_of(planned))
    settings = with_draft(plan_arguments.settings_of(options, held), options.draft_model, options.draft_tokens)
    model = plan_arguments.shape_of(options.model, options.ignore_field, held)
    if options.draft_model is not None:
        model = with_draft_model(model, plan_arguments.shape_of(options.draft_model, (), held))
    if model.max_length is not None and length > model.max_length:
        raise InputError(f"--target-length {length:,} is beyond the {model.max_length:,} that {model.name} supports")
    found, left_out = compare(model, settings, options.compare_devices, length, options.target_requests)
    if not found:
        options.exit_code = 3
        print(f"quire: none of these devices holds a request of {length:,} tokens of {model.name}", file=sys.stderr)
    if options.json:
        _print_json(model.name, length, options.target_requests, found, left_out)
        return
    target = "" if options.target_requests is None else f", {options.target_requests:,} at once"
    print(f"{bold(model.name)}, requests of {format_count(length, 'token')}{target}")
    _print_table(found)
    for one in left_out:
        print(f"  left out: {one.device}, {one.kv_dtype}: {one.why}")


def _check(options: argparse.Namespace) -> None:
    for name in (*SIZES, *RANKS, *REPORTS):
        if getattr(options, name) != options.parser.get_default(name):
            option = "--" + name.replace("_", "-")
            raise InputError(f"--compare-devices compares devices, data types and ranks itself: leave out {option}")


def _print_table(found: Sequence[Configuration]) -> None:
    if not found:
        return
    head = ("device", "KV", "ranks", "replicas", "devices", "requests each", "fill", "tokens/s", "first token, ms")
    rows = [
        (
            one.device,
            one.kv_dtype,
            f"{one.ranks}",
            f"{one.replicas:,}",
            f"{one.devices:,}",
            f"{one.requests:,}",
            f"{one.fill:.1%}",
            f"{one.tokens_per_second:,.0f}",
            f"{1e3 * one.first_token_seconds:,.0f}",
        )
        for one in found
    ]
    table(head, rows, left=(0, 1))
    print(f"  {NOTE}")


def _print_json(
    model: str,
    length: int,
    target_requests: int | None,
    found: Sequence[Configuration],
    left_out: Sequence[LeftOut],
) -> None:
    data = {
        "schema": "quire.devices/1",
        "model": model,
        "length": length,
        "target_requests": target_requests,
        "configurations": [asdict(one) | {"devices": one.devices} for one in found],
        "left_out": [asdict(one) for one in left_out],
    }
    json.dump(data, sys.stdout, indent=1, allow_nan=False)
    print()
