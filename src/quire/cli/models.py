"""The catalogue of known models. Any case is accepted wherever a model is named.

With --check: every causal language model type of the installed transformers, tiny and random, run and compared; with
--check --options: configurations that differ from the types' defaults; with --check --tensor-parallel 2: whether a
small model of each type computes on two ranks what it computes whole.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from quire.cli.text import table
from quire.core.errors import InputError, QuireError
from quire.core.units import format_bytes, format_tokens
from quire.kinds import kind_of
from quire.models.catalogue import catalogue_entry, catalogue_names
from quire.models.read import read_model
from quire.models.shape import ModelShape

if TYPE_CHECKING:
    from quire.sweep import Case, Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("filter", nargs="?", default="", help="show only models whose name contains this")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--check",
        action="store_true",
        help="run every model type of transformers and compare its tokens (takes minutes)",
    )
    parser.add_argument(
        "--options",
        action="store_true",
        help="with --check: run configurations with non-default options (about 8 minutes)",
    )
    parser.add_argument("--only", metavar="TYPE", help="with --check: check only this model type")
    parser.add_argument(
        "--tensor-parallel", type=int, default=1, metavar="N",
        help="with --check: check whether each type can be split among N ranks (default: 1, which runs it whole)",
    )  # fmt: skip
    parser.add_argument(
        "--pipeline-parallel", type=int, default=1, metavar="N",
        help="with --check: check whether each type can be split into N stages (default: 1)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> None:
    if options.check:
        return _check(options)
    if options.only or options.options or max(options.tensor_parallel, options.pipeline_parallel) > 1:
        given = f"--only {options.only}" if options.only else "--options" if options.options else "a number of parts"
        raise InputError(f"{given} chooses what is checked: add --check")
    return _list(options)


def _check(options: argparse.Namespace) -> None:
    """Exit code 1 if one fails."""
    from quire.sweep import sweep, sweep_splits

    chosen = _chosen(options.only, options.options)
    findings: list[Finding] = []
    ranks, stages = options.tensor_parallel, options.pipeline_parallel
    if min(ranks, stages) < 1:
        raise InputError(f"a model has no {min(ranks, stages)} parts: give at least 1 rank and 1 stage")
    found = sweep(chosen) if ranks == stages == 1 else sweep_splits(chosen, ranks, stages)
    for place, finding in enumerate(found, 1):
        print(f"{place}/{len(chosen)} {finding.name}: {finding.verdict}", file=sys.stderr, flush=True)
        findings.append(finding)
    counts = Counter(finding.verdict for finding in findings)
    if options.json:
        json.dump([asdict(finding) for finding in findings], sys.stdout, indent=1)
        print()
    else:
        rows = [(finding.name, finding.verdict, finding.reason) for finding in findings]
        table(("options" if options.options else "type", "verdict", "why"), rows, left=(0, 1, 2))
        print(f"{counts['pass']} pass, {counts['refused']} refused by name, {counts['fails']} fail")
    if counts["fails"]:
        failed = "; ".join(finding.name for finding in findings if finding.verdict == "fails")
        raise QuireError(f"{counts['fails']} of {len(chosen)} fail: {failed}")


def _chosen(only: str | None, has_options: bool) -> list[Case]:
    from quire.sweep import Case, types
    from quire.sweep.options import CASES

    if only and only not in types():
        raise InputError(f"transformers has no causal language model of type {only!r}: check its spelling")
    cases = list(CASES) if has_options else [Case(name) for name in types()]
    chosen = [case for case in cases if only in (None, case.type)]
    if not chosen:
        raise InputError(f"nothing is checked of {only} beyond its defaults: leave out --options")
    return chosen


def _list(options: argparse.Namespace) -> None:
    names = [name for name in catalogue_names() if _is_called(name, options.filter.lower())]
    if not names:
        raise InputError(f"no model of the catalogue contains {options.filter!r}: quire models lists all of them")
    records = [_record(read_model(name)) for name in names]
    if options.json:
        json.dump(records, sys.stdout, indent=1)
        print()
        return
    rows = [
        (
            str(record["name"]),
            str(record["family"]),
            str(record["layers"]),
            ", ".join(record["kinds"]),
            format_tokens(record["max_length"]) if record["max_length"] else "no limit",
            format_bytes(record["weight_bytes"]),
        )
        for record in records
    ]
    table(("model", "family", "layers", "kinds of memory", "longest", "weights"), rows, left=(0, 1, 3))


def _is_called(name: str, part: str) -> bool:
    return any(part in one for one in (name, *catalogue_entry(name).aliases))


def _record(model: ModelShape) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for layer in model.layers:
        for memory in layer.memories:
            name = kind_of(memory).name
            counts[name] = counts.get(name, 0) + 1
    layers = sum(layer.weight_bytes + layer.replicated_weight_bytes for layer in model.layers)
    return {
        "name": model.name,
        "family": model.family,
        "layers": len(model.layers),
        "kinds": [f"{count} {name}" for name, count in counts.items()],
        "max_length": model.max_length,
        "weight_bytes": layers + model.embedding_bytes + model.head_bytes,
    }
