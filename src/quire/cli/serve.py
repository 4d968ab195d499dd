"""Serves a model over HTTP with the OpenAI API, until it is stopped by a signal.

Without MODEL the default is served: smollm2-135m-instruct, downloaded once. Options can also be set in a TOML file
(--config, or quire.toml in this folder: max-length = 4096) or in the environment (QUIRE_MAX_LENGTH=4096); the command
line overrides the environment, which overrides the file. The plan is printed first. Exit 3: it does not fit.
Requests without a temperature are sampled at 1, as at OpenAI; quire generate, quire chat and LLM use 0.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from socket import socket

from quire.build.machine import chosen_device, torch_elsewhere_has_cuda
from quire.cli import asked
from quire.cli import options as common
from quire.cli.configuration import complete
from quire.cli.fetch import Bar
from quire.cli.peers import add_peer_options, peer_of
from quire.core.errors import InputError
from quire.core.units import parse_bytes
from quire.fetch.find import converted, find_source
from quire.serve.settings import ServeSettings

DEFAULTS = ServeSettings()
STORES = ("host_bytes", "disk", "disk_bytes", "remote")
LOG_LEVELS = ("debug", "info", "warning", "error")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing has a default here: what was not typed may stand in a file or in the environment."""
    _add(parser)
    for action in parser._actions:
        action.default = argparse.SUPPRESS


def _add(parser: argparse.ArgumentParser) -> None:
    common.add_run_model_argument(parser)
    common.add_memory_shape_options(parser, runs=True)
    common.add_ignore_option(parser)
    common.add_draft_options(parser)
    common.add_store_options(parser.add_argument_group("caches of prefixes below --host-memory (default: none)"))
    add_peer_options(parser.add_argument_group("hand-over between two servers"))
    _add_engine_options(parser.add_argument_group("engine"))
    _add_http_options(parser.add_argument_group("http"))
    _add_limit_options(parser.add_argument_group("limits of HTTP requests"))
    parser.set_defaults(kv_dtype=None)  # as the weights


def _add_engine_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with options (default: quire.toml in this folder, if it exists)",
    )
    group.add_argument("--plan", type=Path, metavar="FILE", help="start from a plan saved with quire plan --output")
    group.add_argument(
        "--dtype",
        type=common.weights_dtype,
        metavar="DTYPE",
        help="data type of the weights: fp32, bf16, fp16 (default: fp32 on a CPU, else bf16)",
    )
    group.add_argument(
        "--threads",
        type=common.reading(common.positive),
        metavar="N",
        help="CPU threads for torch (default: torch chooses)",
    )
    group.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="record everything the engine is given, prompts included, for quire replay",
    )
    group.add_argument(
        "--step-seconds", type=float, default=DEFAULTS.step_seconds, metavar="S",
        help="seconds without a finished step after which /health/progress reports a stall (default 30)",
    )  # fmt: skip
    group.add_argument(
        "--load-seconds", type=float, default=DEFAULTS.load_seconds, metavar="S",
        help="time limit for loading a prefix from a tier, else it is computed (default 5, plus 1 per 256 MiB)",
    )  # fmt: skip


def _add_http_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host", default=DEFAULTS.host, help="address to listen on (default 127.0.0.1: this machine only)"
    )
    group.add_argument(
        "--port", type=int, default=DEFAULTS.port, help="port to listen on (default 8000; 0: any free port)"
    )
    group.add_argument(
        "--model-name", default="", metavar="NAME", help="model name in the API (default: the folder's name)"
    )
    group.add_argument(
        "--keys", type=Path, metavar="FILE", help="file of API keys, made by quire keys add (default: no key is needed)"
    )
    group.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default=DEFAULTS.log_level,
        help="least severe messages to log (default info)",
    )
    group.add_argument("--log-text", action="store_true", help="include prompts and answers in the logs")


def _add_limit_options(group: argparse._ArgumentGroup) -> None:
    size, count = common.reading(parse_bytes), common.reading(common.positive)
    group.add_argument(
        "--queue",
        type=count,
        default=DEFAULTS.queue,
        metavar="N",
        help="maximum queued requests; more are refused with 429 (default 1024)",
    )
    group.add_argument(
        "--request-seconds",
        type=float,
        default=DEFAULTS.request_seconds,
        metavar="S",
        help="end a request with 504 after this many seconds (default 600)",
    )
    group.add_argument(
        "--drain-seconds",
        type=float,
        default=DEFAULTS.drain_seconds,
        metavar="S",
        help="time for running requests to finish after a stop signal (default 60)",
    )
    group.add_argument(
        "--body-bytes",
        type=size,
        default=DEFAULTS.body_bytes,
        metavar="BYTES",
        help="maximum size of a request body (default 4MiB)",
    )
    group.add_argument(
        "--body-seconds",
        type=float,
        default=DEFAULTS.body_seconds,
        metavar="S",
        help="time limit for receiving a request body (default 30)",
    )
    group.add_argument(
        "--header-bytes",
        type=size,
        default=DEFAULTS.header_bytes,
        metavar="BYTES",
        help="maximum size of all headers of a request (default 16KiB)",
    )
    group.add_argument(
        "--header-seconds",
        type=float,
        default=DEFAULTS.header_seconds,
        metavar="S",
        help="time limit for receiving the headers (default 10)",
    )
    group.add_argument(
        "--connections",
        type=count,
        default=DEFAULTS.connections,
        metavar="N",
        help="maximum open connections (default 2048)",
    )


def run(typed: argparse.Namespace) -> None:
    options = complete(_add, typed)
    from quire.recording.recorder import require_recordable
    from quire.serve.keys import read_keys
    from quire.serve.server import listen

    if options.record is not None:
        require_recordable(options.record)
    if options.keys is not None:
        read_keys(options.keys)  # what is wrong there is told before anything is planned
    with listen(options.host, options.port) as listener:
        _serve(options, settings_of(options), listener)


def _serve(options: argparse.Namespace, settings: ServeSettings, listener: socket) -> None:
    peer = peer_of(options)
    device = chosen_device(options.device, torch_elsewhere_has_cuda)
    from quire.build.assemble import require_gpu, weights_dtype
    from quire.cli.boot import boot_plan
    from quire.serve.server import run as serve

    require_gpu(options.deterministic, device, options.compile)
    dtype = options.dtype or weights_dtype(device)
    source = _source(options.model)
    draft = None if options.draft_model is None else _source(options.draft_model)
    plan, planned_for = boot_plan(options, source, dtype, draft, device)
    tiers = asked.tiers_of(options)
    serve(
        listener,
        plan,
        converted(source, Bar()),
        dtype.value,
        settings,
        planned_for,
        device=device,
        compiled=options.compile,
        deterministic=options.deterministic,
        threads=options.threads,
        freeze_file=os.environ.get("QUIRE_DRILL_FREEZE_FILE"),
        draft=None if draft is None else converted(draft, Bar()),
        record=options.record,
        tiers={name: getattr(tiers, name) for name in STORES} | {"connectors": tuple(options.connector), "peer": peer},
        announce=partial(print, flush=True),
    )


def settings_of(options: argparse.Namespace) -> ServeSettings:
    return ServeSettings(**{name: getattr(options, name) for name in ServeSettings.__dataclass_fields__})


def _source(model: str | None) -> Path:
    source = find_source(model, Bar())
    if source.is_dir() and not (source / "config.json").is_file():
        raise InputError(f"{source} has no config.json: give a checkpoint's folder, or none for the default model")
    return source
