"""The `quire` command. Commands import what they need when they run, so that `quire plan` answers at once."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import IO, Any, NoReturn, cast

from quire import __version__
from quire.core.errors import QuireError
from quire.options.extras import naming_extras
from quire.options.spelling import near_to

COMMANDS = {
    "generate": "answer one prompt on this machine",
    "chat": "chat in the terminal",
    "serve": "serve a model over HTTP with the OpenAI API",
    "rank": "serve a model as one of several ranks, started by torchrun or Slurm",
    "top": "watch a running server in the terminal",
    "deploy": "serve a model with several replicas at one address, on Ray",
    "keys": "manage the API keys of a server",
    "fetch": "download a model",
    "plan": "plan the memory of a model exactly, from its configuration",
    "whatif": "show what each setting would change about a plan",
    "simulate": "simulate serving a trace, with the real engine on virtual time",
    "bench": "measure this machine's speed, with random weights",
    "models": "list the known models",
    "devices": "list the known accelerators",
    "replay": "replay a recording of an engine, to any step",
    "check": "check the engine's guarantees in random or exhaustive runs",
    "check-connector": "check your own connector for a prefix store",
}


class _Parser(argparse.ArgumentParser):
    """One clear line instead of a page of usage, with what was probably meant."""

    given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.given = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        mistyped = self._mistyped()
        print(f"{self.prog}: {mistyped or message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)

    def _mistyped(self) -> str:
        """An unknown option or command, which explains any other error."""
        if self.prog == "quire" and not self.given:
            return f"name a command: {', '.join(COMMANDS)}"
        first = self.given[0] if self.given else "-"
        if self.prog == "quire" and first.startswith("-"):
            return f"{first} stands before a command: name one first: {', '.join(COMMANDS)}"
        if self.prog == "quire" and first not in COMMANDS:
            return f"there is no command {first}{near_to(first, COMMANDS)}"
        options = [word.partition("=")[0] for word in self.given if _is_option(word)]
        unknown = [option for option in options if option not in self._option_string_actions]
        if "--model" in unknown and any(action.dest == "model" for action in self._actions):
            return f"--model is not understood: the model stands by itself, as in {self.prog} MODEL"
        if unknown and self._subparsers is None:  # else it may be an option of the command that follows
            return f"{unknown[0]} is not understood{near_to(unknown[0], self._option_string_actions)}"
        return ""


def _is_option(word: str) -> bool:
    return word.startswith("--") and word != "--" and " " not in word.partition("=")[0]


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="quire",
        description="A key-value memory for language models: it cannot hang, wastes almost nothing, explains itself.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"quire {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"quire.cli.{name.replace('-', '_')}")
        command = commands.add_parser(
            name, help=summary, description=module.__doc__, formatter_class=_Help, allow_abbrev=False
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, parser=command)
    return parser


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36, width=min(120, shutil.get_terminal_size((110, 24)).columns))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command to which unknown options were given reports them, with the nearest known one."""
    parsed, unknown = build_parser().parse_known_args(arguments)
    if unknown:
        parsed.parser.error(f"{unknown[0]} is not understood")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: docs/operations.md."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("quire: interrupted", file=sys.stderr)
        return 130


def _run(arguments: Sequence[str] | None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without these block characters still gets the numbers
    parsed = _parse(arguments)
    parsed.exit_code = 0
    try:
        with redirect_stdout(cast(IO[str], _Answer(sys.stdout))), naming_extras(parsed.command):
            parsed.run(parsed)
            sys.stdout.flush()
    except QuireError as error:
        print(f"quire: {error}", file=sys.stderr)
        return error.exit_code
    except _Unwritten as error:
        if not isinstance(error.__cause__, BrokenPipeError):
            print(f"quire: cannot write the answer: {error}", file=sys.stderr)
            return 1
        # The reader (head, less) has seen enough; leave without a second error at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"quire: {parsed.command} failed: {_said(error)}", file=sys.stderr)
        return 1
    return int(parsed.exit_code)


def _said(error: OSError) -> str:
    """The system's message, and the file."""
    words = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {words}" if error.filename is not None else words


class _Unwritten(Exception):
    """Standard output takes no more; a file or a store that fails says so itself."""


class _Answer:
    """Standard output, whose errors are distinguished from all others."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise _Unwritten(_said(error)) from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise _Unwritten(_said(error)) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


if __name__ == "__main__":
    sys.exit(main())
