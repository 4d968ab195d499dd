"""Options of hand-over: which engine computes prompts, and for whom."""

from __future__ import annotations

import argparse
from pathlib import Path

from quire.cli.options import reading
from quire.core.errors import InputError
from quire.core.peer import Peer, Role, parse_address

SECONDS = 30.0


def add_peer_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--role",
        choices=[role.value for role in Role],
        help="prefill: compute KV for decode servers; decode: fetch prompts' KV from a prefill server",
    )
    group.add_argument(
        "--peer",
        type=reading(parse_address),
        metavar="HOST:PORT",
        help="address of the prefill server, where it listens for decode servers",
    )
    group.add_argument("--peer-secret", type=Path, metavar="FILE", help="file with the secret shared by both servers")
    group.add_argument(
        "--peer-seconds",
        type=float,
        default=SECONDS,
        metavar="S",
        help="time limit for the prefill server; after it the prompt is computed locally (default 30)",
    )


def peer_of(options: argparse.Namespace) -> Peer | None:
    """Its secret is read here once, so that a file that is no good is told before anything is loaded."""
    if options.role is None and options.peer is None and options.peer_secret is None:
        return None
    given = {"--role": options.role, "--peer": options.peer, "--peer-secret": options.peer_secret}
    if missing := [name for name, value in given.items() if value is None]:
        raise InputError(f"a hand-over needs --role, --peer and --peer-secret: give {' and '.join(missing)} as well")
    host, port = options.peer
    peer = Peer(Role(options.role), host, port, options.peer_secret, options.peer_seconds)
    peer.read_secret()
    return peer
