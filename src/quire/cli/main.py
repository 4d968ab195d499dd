"""The `quire` command. Commands import what they need when they run, so that `quire plan` answers at once."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from quire import __version__
from quire.core.errors import QuireError

COMMANDS = {
    "plan": "from a model's configuration to an exact memory plan",
    "whatif": "what each setting would change about a plan",
    "models": "the catalogue of known models",
}


class _Parser(argparse.ArgumentParser):
    """One clear line instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="quire",
        description="A key-value memory for language models: it cannot hang, wastes almost nothing, explains itself.",
    )
    parser.add_argument("--version", action="version", version=f"quire {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"quire.cli.{name}")
        command = commands.add_parser(name, help=summary, description=module.__doc__, formatter_class=_Help)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36, width=min(120, int(os.environ.get("COLUMNS", "110"))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 not understood, 3 understood but does not fit, 1 anything else on purpose."""
    parsed = build_parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except QuireError as error:
        print(f"quire: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) has seen enough; leave without a second error at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
