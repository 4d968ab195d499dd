"""Serves a model with several replicas at one address, on Ray Serve, until it is stopped by a signal.

All options of quire serve hold for each replica. Each call goes to the replica where the least is left to compute for
it, by Quire's router. On SIGHUP the replicas start again, one after another. Needs the extra ray.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from quire.cli import serve as serving
from quire.cli.boot import boot_plan
from quire.cli.configuration import complete
from quire.cli.flags import add_flags, run_options
from quire.core.errors import InputError
from quire.deploy.places import needs, requests_at_once
from quire.deploy.process import THREADS
from quire.deploy.settings import DeploySettings
from quire.options.extras import require_ray
from quire.options.flags import flags, from_flags
from quire.options.peer import Role
from quire.options.ranks import ENVIRONMENT
from quire.options.run import RunOptions
from quire.serve.settings import ServeSettings

NOT_PASSED_ON = ("command", "exit_code", "parser", "run")
ALONE = "each replica would do so: leave it out, or run quire serve for each"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add(parser)
    for action in parser._actions:
        action.default = argparse.SUPPRESS


def _add(parser: argparse.ArgumentParser) -> None:
    add_flags({"replicas": parser.add_argument_group("replicas")}, DeploySettings)
    serving.add_all(parser)


def run(typed: argparse.Namespace) -> None:
    from quire.serve.keys import read_keys
    from quire.serve.server import listen

    parsed = complete(_add, typed, "quire deploy")
    options, served = run_options(parsed), from_flags(ServeSettings, vars(parsed))
    settings = from_flags(DeploySettings, vars(parsed))
    _require_many(options)
    require_ray("deploy")
    if served.keys is not None:
        read_keys(served.keys)
    with listen(served.host, served.port) as listener:  # so that an address in use is reported at once
        served = replace(served, port=listener.getsockname()[1])
    _deploy(parsed, options, served, settings)


def _deploy(parsed: argparse.Namespace, options: RunOptions, served: ServeSettings, settings: DeploySettings) -> None:
    options, source = serving.resolved(options, parsed.model)
    draft = None if options.draft_model is None else serving.source_of(options.draft_model)
    plan, _ = boot_plan(parsed, source, options, draft)
    many = requests_at_once(plan, settings.request_tokens)
    length = min(settings.request_tokens, plan.max_length)
    print(f"\neach replica runs {many:,} requests of {length:,} tokens at once", flush=True)

    from quire.deploy.application import Deployment
    from quire.deploy.cluster import run as deploy

    address = settings.ray_address or os.environ.get("RAY_ADDRESS")
    deployment = Deployment(
        settings,
        served,
        _passed_on(parsed),
        Path.cwd(),
        needs(plan, options),
        many,
        os.environ.get(THREADS),
        is_local=address is None,
    )
    model = (served.model_name or (serving.name_of(source),))[0]
    deploy(deployment, address, model, partial(print, flush=True))


def _require_many(options: RunOptions) -> None:
    """Raises for what several replicas cannot do with the same options."""
    if options.ranks.launch == ENVIRONMENT:
        raise InputError(
            "--launch environment starts the ranks of one server, and Ray starts the replicas: leave it out for ranks "
            "that are processes of their replica, or choose --launch ray"
        )
    if options.record is not None:
        raise InputError(f"--record {options.record} names one file: {ALONE}")
    if options.kv_events is not None and options.kv_events.is_bound:
        raise InputError(
            f"--kv-events {options.kv_events.publish} listens on one port: give the address of a reader that listens "
            "itself, tcp://HOST:PORT, or run quire serve for each"
        )
    if options.tiers.peer is not None and options.tiers.peer.role is Role.PREFILL:
        raise InputError(f"--role prefill listens on one port: {ALONE}")


def _passed_on(parsed: argparse.Namespace) -> dict[str, Any]:
    """The options of `quire serve` alone, as they can be sent to another process."""
    own = {flag.key for flag in flags(DeploySettings)} | set(NOT_PASSED_ON)
    return {
        name: dict(value) if isinstance(value, MappingProxyType) else value
        for name, value in vars(parsed).items()
        if name not in own
    }
