"""Serves a model over HTTP, in OpenAI's protocol, until a signal comes.

Without MODEL the default one: smollm2-135m-instruct, fetched once. Every option may also stand in a TOML file
(--config, else quire.toml where there is one: max-length = 4096) or in the environment (QUIRE_MAX_LENGTH=4096); what is
typed counts before the environment, and that before the file. The plan's report comes first. Exit 3: it does not fit.
A request that names no temperature draws at 1, as at OpenAI; quire generate, quire chat and LLM take 0.
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
    common.add_store_options(parser.add_argument_group("tiers beside --host-memory: prefixes live on there"))
    add_peer_options(parser.add_argument_group("hand-over between two servers"))
    _add_engine_options(parser.add_argument_group("engine"))
    _add_http_options(parser.add_argument_group("http"))
    _add_limit_options(parser.add_argument_group("limits of calls"))
    parser.set_defaults(kv_dtype=None)  # as the weights


def _add_engine_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--config", type=Path, metavar="FILE", help="options in TOML (default: quire.toml, if there)")
    group.add_argument("--plan", type=Path, metavar="FILE", help="boot from a plan saved with quire plan --output")
    group.add_argument(
        "--dtype",
        type=common.weights_dtype,
        metavar="DTYPE",
        help="of the weights: fp32, bf16, fp16 (default: fp32 on a CPU, else bf16)",
    )
    group.add_argument(
        "--threads", type=common.reading(common.positive), metavar="N", help="of torch (default: its own)"
    )
    group.add_argument(
        "--record", type=Path, metavar="FILE", help="write down all that the engine is given, for quire replay"
    )
    group.add_argument(
        "--step-seconds", type=float, default=DEFAULTS.step_seconds, metavar="S",
        help="a step that takes longer is no progress (default 30)",
    )  # fmt: skip
    group.add_argument(
        "--load-seconds", type=float, default=DEFAULTS.load_seconds, metavar="S",
        help="what a tier has not brought by then is computed (default 5; and 1 more for each 256 MiB)",
    )  # fmt: skip


def _add_http_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default=DEFAULTS.host, help="where to listen (default 127.0.0.1: this machine alone)")
    group.add_argument("--port", type=int, default=DEFAULTS.port, help="default 8000; 0 takes a free one")
    group.add_argument(
        "--model-name", default="", metavar="NAME", help="as clients call it (default: the folder's name)"
    )
    group.add_argument(
        "--keys", type=Path, metavar="FILE", help="of API keys (quire keys add); none: everybody may come in"
    )
    group.add_argument("--log-level", choices=LOG_LEVELS, default=DEFAULTS.log_level, help="default info")
    group.add_argument("--log-text", action="store_true", help="prompts and answers in the logs")


def _add_limit_options(group: argparse._ArgumentGroup) -> None:
    size, count = common.reading(parse_bytes), common.reading(common.positive)
    group.add_argument("--queue", type=count, default=DEFAULTS.queue, metavar="N", help="requests that may wait (1024)")
    group.add_argument(
        "--request-seconds", type=float, default=DEFAULTS.request_seconds, metavar="S", help="of an answer (600)"
    )
    group.add_argument(
        "--drain-seconds", type=float, default=DEFAULTS.drain_seconds, metavar="S", help="after a signal (60)"
    )
    group.add_argument("--body-bytes", type=size, default=DEFAULTS.body_bytes, metavar="BYTES", help="of a body (4MiB)")
    group.add_argument(
        "--body-seconds", type=float, default=DEFAULTS.body_seconds, metavar="S", help="until a body is here (30)"
    )
    group.add_argument(
        "--header-bytes", type=size, default=DEFAULTS.header_bytes, metavar="BYTES", help="of all headers (16KiB)"
    )
    group.add_argument(
        "--header-seconds", type=float, default=DEFAULTS.header_seconds, metavar="S", help="until they are here (10)"
    )
    group.add_argument("--connections", type=count, default=DEFAULTS.connections, metavar="N", help="at once (2048)")


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
