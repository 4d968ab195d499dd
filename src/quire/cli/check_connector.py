"""Checks a connector of your own: that a store keeps what it is given, apart from others, whole, from several threads.

MODULE:NAME is what `--connector` takes: NAME() makes a connector, in a module that Python can import. Exit 1: it fails.
"""

from __future__ import annotations

import argparse

from quire.check.connectors import check_connector
from quire.core.connector import Layout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("module", metavar="MODULE[:NAME]", help="what makes one (default NAME: connector)")


def run(options: argparse.Namespace) -> None:
    from quire.build.tiers import connector_of

    layout = Layout("c0ffee" * 10 + "c0de", 64, 1 << 20, 1 << 16, "[]")
    failed = 0
    for sentence, problem in check_connector(lambda: connector_of(options.module), layout):
        print(f"{'FAILS' if problem else 'ok':<6} {sentence}" + (f": {problem}" if problem else ""))
        failed += bool(problem)
    print(f"{failed} fail" if failed else "conforms")
    options.exit_code = int(failed > 0)
