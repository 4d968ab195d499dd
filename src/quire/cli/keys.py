"""Manages the API keys of a server. A running server rereads the file when it changes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from quire.cli.flags import reading
from quire.cli.text import table
from quire.options.texts import bytes_or_zero, positive

if TYPE_CHECKING:
    from quire.serve.keys import Tenant

ACTIONS = {"add": "create a key and print it once", "list": "list the names of all keys", "remove": "delete a key"}
LIMITS = {
    "most_requests": "requests",
    "most_tokens": "tokens a request",
    "tokens_per_minute": "tokens a minute",
    "lease_bytes": "leased bytes",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    count = reading(positive)
    parser.add_argument(
        "--file", type=Path, default=Path("keys.json"), metavar="FILE", help="file of the keys (default keys.json)"
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add, show, remove = (
        actions.add_parser(name, help=summary, formatter_class=parser.formatter_class, allow_abbrev=False)
        for name, summary in ACTIONS.items()
    )
    for action in (add, remove):
        action.add_argument("name", metavar="NAME", help="name of the key, shown in logs")
    for action in (add, show, remove):
        action.add_argument(
            "--file", type=Path, default=argparse.SUPPRESS, metavar="FILE", help="file of the keys (default keys.json)"
        )
        action.set_defaults(parser=action)
    add.add_argument(
        "--scope", metavar="SCOPE", help="keys of one scope share cached prefixes (default: the key's own name)"
    )
    add.add_argument(
        "--weight", type=float, default=1.0, metavar="W", help="share of tokens when tenants compete (default 1)"
    )
    add.add_argument(
        "--most-requests", type=count, metavar="N", help="maximum requests running and queued (default: no limit)"
    )
    add.add_argument(
        "--most-tokens",
        type=count,
        metavar="N",
        help="maximum tokens of a request, prompt and output (default: no limit)",
    )
    add.add_argument(
        "--tokens-per-minute",
        type=count,
        metavar="N",
        help="maximum tokens per minute, prompts and outputs (default: no limit)",
    )
    add.add_argument(
        "--lease-memory",
        type=reading(bytes_or_zero),
        metavar="BYTES",
        help="maximum memory of the key's leases, for example 2GiB; 0: none (default: no limit of its own)",
    )
    add.add_argument("--admin", action="store_true", help="allow dropping any cache and explaining any request")


def run(options: argparse.Namespace) -> None:
    from quire.serve.keys import Tenant, add_key, read_keys, remove_key

    if options.action == "list":
        rows = [_row(tenant) for tenant in read_keys(options.file)]
        table(("name", "scope", "weight", *LIMITS.values(), "admin"), rows, left=(0, 1, 7))
        return
    if options.action == "remove":
        remove_key(options.file, options.name)
        return
    tenant = Tenant(
        options.name,
        options.name if options.scope is None else options.scope,
        options.weight,
        options.most_requests,
        options.most_tokens,
        options.tokens_per_minute,
        options.lease_memory,
        options.admin,
    )
    print(add_key(options.file, tenant))


def _row(tenant: Tenant) -> tuple[str, ...]:
    limits = (getattr(tenant, name) for name in LIMITS)
    told = ("" if limit is None else f"{limit:,}" for limit in limits)
    return (tenant.name, tenant.scope, f"{tenant.weight:g}", *told, "yes" if tenant.is_admin else "")
