"""Shows a running server in the terminal: memory, requests and why they wait, reuse, leases and tiers.

The screen is drawn anew twice a second, until Ctrl-C. It shows what the page /inspect shows, as far as the key may see
it, also while the engine is frozen or dead. Into a pipe it prints one frame as plain text and ends, as with --once.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing, suppress

URL = "http://127.0.0.1:8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", nargs="?", default=URL, metavar="URL", help=f"address of the server (default {URL})")
    parser.add_argument(
        "--api-key", metavar="KEY", help="API key; set it as QUIRE_API_KEY, processes show a typed one (default: none)"
    )
    parser.add_argument("--once", action="store_true", help="print one frame and exit")


def run(options: argparse.Namespace) -> None:
    from quire.top.screen import show_once, watch
    from quire.top.server import Server

    with closing(Server(options.url, options.api_key or os.environ.get("QUIRE_API_KEY", ""))) as server:
        if options.once or not sys.stdout.isatty():
            show_once(server)
            return
        with suppress(KeyboardInterrupt):  # the usual way to end it
            watch(server)
