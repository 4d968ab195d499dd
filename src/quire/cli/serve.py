"""Serves a model over HTTP with the OpenAI API, until it is stopped by a signal.

Without MODEL the default is served: smollm2-135m-instruct, downloaded once. Options can also be set in a TOML file
(--config, or quire.toml in this folder: max-length = 4096) or in the environment (QUIRE_MAX_LENGTH=4096); the command
line overrides the environment, which overrides the file. The plan is printed first. Exit 3: it does not fit.
Requests without a temperature are sampled at 1, as at OpenAI; quire generate, quire chat and LLM use 0.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

from quire.build.machine import resolve_device, torch_elsewhere_has_cuda
from quire.build.phases import Phases
from quire.cli import options as common
from quire.cli.configuration import complete
from quire.cli.fetch import Bar
from quire.cli.flags import add_draft_flags, add_flags, run_options
from quire.core.errors import InputError
from quire.fetch.find import converted, downloaded, find_source, is_gguf
from quire.options.flags import from_flags
from quire.options.run import RunOptions
from quire.serve.settings import ServeSettings

if TYPE_CHECKING:
    from quire.fetch.find import Source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No option has a default here: what was not typed may be set in a file or in the environment."""
    add_all(parser)
    for action in parser._actions:
        action.default = argparse.SUPPRESS


def add_all(parser: argparse.ArgumentParser) -> None:
    common.add_run_model_argument(parser)
    common.add_memory_shape_options(parser, runs=True)
    common.add_ignore_option(parser)
    add_draft_flags(parser)
    stores = parser.add_argument_group("caches of prefixes below --host-memory (default: none)")
    add_flags({"stores": stores, "hand-over": parser.add_argument_group("hand-over between two servers")})
    _add_engine_options(parser.add_argument_group("engine"))
    http = parser.add_argument_group("http")
    add_flags({"http": http, "limits": parser.add_argument_group("limits of HTTP requests")}, ServeSettings)


def _add_engine_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with options (default: quire.toml in this folder, if it exists)",
    )
    group.add_argument("--plan", type=Path, metavar="FILE", help="start from a plan saved with quire plan --output")
    add_flags({"engine": group})
    add_flags({"progress": group}, ServeSettings)


def run(typed: argparse.Namespace) -> None:
    parsed = complete(add_all, typed)
    if parsed.config is not None:
        print(f"options are read from {parsed.config.resolve()}", flush=True)
    serve(parsed)


def serve(parsed: argparse.Namespace) -> None:
    options = run_options(parsed)
    from quire.recording.recorder import require_recordable
    from quire.serve.keys import read_keys
    from quire.serve.server import listen
    from quire.serve.spans.destination import destination

    if options.record is not None:
        require_recordable(options.record)
    if parsed.keys is not None:
        read_keys(parsed.keys)  # so that errors are reported before anything is planned
    settings = from_flags(ServeSettings, vars(parsed))
    settings = replace(settings, otel=destination(settings.otel, os.environ))
    with listen(parsed.host, parsed.port) as listener:
        _serve(parsed, options, settings, listener)


def _serve(parsed: argparse.Namespace, options: RunOptions, settings: ServeSettings, listener: socket) -> None:
    from quire.build.tiers import load_connectors
    from quire.cli.boot import boot_plan
    from quire.serve.server import PlannedModel, run

    options.tiers.read_secret()
    if options.tiers.peer is not None:
        options.tiers.peer.read_secret()
    phases = Phases()
    with phases.time("resolve"):
        options, source = resolved(options, parsed.model)
        draft = None if options.draft_model is None else source_of(options.draft_model)
    with phases.time("plan"):
        plan, planned_for = boot_plan(parsed, source, options, draft)
    load_connectors(options.tiers)  # the engine's process makes its own; errors are reported here
    folder = _folder(source, phases, options.weights)
    draft_folder = None if draft is None else _folder(draft, phases, options.weights)
    options = replace(options, draft_model=draft_folder, weights=None)  # both folders are quantised now
    if not settings.model_name:
        settings = replace(settings, model_name=(name_of(source),))
    print(f"\n{phases.line()}", flush=True)
    freeze_file = os.environ.get("QUIRE_DRILL_FREEZE_FILE")
    run(
        listener,
        PlannedModel(folder, plan, planned_for),
        options,
        settings,
        freeze_file=None if freeze_file is None else Path(freeze_file),
        announce=partial(print, flush=True),
    )


def resolved(options: RunOptions, model: str | None) -> tuple[RunOptions, Source]:
    """Where the model runs, and where it comes from."""
    return resolve_device(options, torch_elsewhere_has_cuda), source_of(model)


def _folder(source: Source, phases: Phases, weights: str | None) -> Path:
    with phases.time("download"):
        here = downloaded(source, Bar())
    with phases.time("convert"):
        return converted(here, Bar(), weights)


def name_of(source: Source) -> str:
    """What clients call the model: not the folder in the cache that it was converted to."""
    return source.stem if isinstance(source, Path) and is_gguf(source) else source.name


def source_of(model: str | Path | None) -> Source:
    source = find_source(model, Bar())
    if isinstance(source, Path) and source.is_dir() and not (source / "config.json").is_file():
        raise InputError(f"{source} has no config.json: give a checkpoint's folder, or none for the default model")
    return source
