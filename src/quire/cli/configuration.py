"""Options from a TOML file and from the environment, under the names of the command line.

    typed  >  QUIRE_MAX_LENGTH=4096  >  max-length = 4096 in quire.toml  >  the default

Each source is read by the same parser as the command line, and its errors are reported with its name. A file that was
found, and not asked for, names no code to run.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from quire.core.errors import InputError
from quire.options.spelling import near_to

FILE = Path("quire.toml")
PREFIX = "QUIRE_"
NOT_OURS = ("QUIRE_CACHE", "QUIRE_DRILL_FREEZE_FILE")
"""Environment variables that are read elsewhere."""
CODE = ("--connector",)
"""Options that name code."""
Value = str | bool | list[str]


class _Parser(argparse.ArgumentParser):
    source = ""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.source}: {message.removeprefix('argument ')}")


def complete(
    add: Callable[[argparse.ArgumentParser], None], typed: argparse.Namespace, command: str = "quire serve"
) -> argparse.Namespace:
    """What was typed, completed from the environment, the file and the defaults."""
    parser = _Parser(prog=command, add_help=False, allow_abbrev=False)
    add(parser)
    environment = _environment(parser)
    asked = getattr(typed, "config", None) or environment.get("--config")
    file = asked or (FILE if FILE.is_file() else None)
    merged = vars(parser.parse_args([]))
    if file is not None:
        arguments = _arguments(_table(Path(str(file))), str(file))
        if not asked:
            _require_no_code(arguments)
        merged |= _read(parser, arguments, str(file)) | {"config": Path(str(file))}
    merged |= _read(parser, environment, "the environment")
    return argparse.Namespace(**(merged | vars(typed)))


def _require_no_code(arguments: Mapping[str, Value]) -> None:
    """Others may write to the folder in which a server starts: they must not run code as its user."""
    for name in CODE:
        if name in arguments:
            raise InputError(
                f"{FILE} was found here, and names code to run ({name.removeprefix('--')}): "
                f"name the file with --config {FILE}, or give {name} on the command line"
            )


def _read(parser: _Parser, arguments: Mapping[str, Value], source: str) -> dict[str, Any]:
    """Only the options that a source sets, parsed."""
    parser.source = source
    repeated = {action.dest for action in parser._actions if isinstance(action.default, list)}
    line = [part for name, value in arguments.items() for part in _typed(name, value, _destination(name) in repeated)]
    given = {_destination(name) for name in arguments}
    unknown = sorted(given - set(vars(parser.parse_args([]))))
    if unknown:
        name, known = unknown[0].replace("_", "-"), [option.replace("_", "-") for option in vars(parser.parse_args([]))]
        raise InputError(f"{source}: {name} is no option of {parser.prog}{near_to(name, known)}")
    return {name: value for name, value in vars(parser.parse_args(line)).items() if name in given}


def _typed(name: str, value: Value, is_repeated: bool) -> list[str]:
    """A list is an option that may be repeated, or numbers with commas between."""
    if isinstance(value, bool):
        return [name] if value else []
    if isinstance(value, list):
        return [f"{name}={one}" for one in value] if is_repeated else [f"{name}={','.join(value)}"]
    return [value] if name == "--model" else [f"{name}={value}"]


def _destination(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _environment(parser: argparse.ArgumentParser) -> dict[str, Value]:
    flags = {action.dest for action in parser._actions if action.nargs == 0}
    found: dict[str, Value] = {}
    for name, value in os.environ.items():
        if name.startswith(PREFIX) and name not in NOT_OURS:
            option = "--" + name.removeprefix(PREFIX).lower().replace("_", "-")
            found[option] = value.lower() in ("1", "true", "yes", "on") if _destination(option) in flags else value
    return found


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}") from None


def _arguments(table: Mapping[str, Any], source: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            raise InputError(f"{source}: [{name}] is a table: write every option at the top, as in max-length = 4096")
        text = list(map(str, value)) if isinstance(value, list) else value if isinstance(value, bool) else str(value)
        found["--" + name.replace("_", "-")] = text
    return found
