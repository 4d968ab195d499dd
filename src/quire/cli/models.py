"""The catalogue of known models. Any case is accepted wherever a model is named."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from quire.cli.text import table
from quire.core.errors import InputError
from quire.core.units import format_bytes, format_tokens
from quire.kinds import kind_of
from quire.models.catalogue import catalogue_names
from quire.models.read import read_model
from quire.models.shape import ModelShape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("filter", nargs="?", default="", help="only names that contain this")
    parser.add_argument("--json", action="store_true", help="a list on standard output")


def run(options: argparse.Namespace) -> None:
    names = [name for name in catalogue_names() if options.filter.lower() in name]
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
