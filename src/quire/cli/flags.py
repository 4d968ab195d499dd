"""Flags of the command line, made from the fields of options, and the options that parsed arguments describe."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TypeVar

from quire.core.errors import InputError
from quire.options.flags import REQUIRED, Flag, flags, from_flags
from quire.options.run import RunOptions

Value = TypeVar("Value")
GREATEST_PORT = 65_535
Group = argparse._ArgumentGroup | argparse.ArgumentParser


def reading(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """A parser whose errors argparse prints."""

    @wraps(parse)
    def read(text: str) -> Value:
        try:
            return parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def add_flags(groups: Mapping[str, Group], kind: type = RunOptions) -> None:
    """The flags of these groups (`Flag.group`), each where the command's help shows it."""
    for flag in flags(kind):
        if flag.group in groups:
            _add(groups[flag.group], flag)


def _add(group: Group, flag: Flag) -> None:
    default = None if flag.default is REQUIRED else flag.default
    if isinstance(flag.default, bool):
        group.add_argument(flag.name, action="store_true", help=flag.help)
    elif isinstance(flag.default, tuple):
        group.add_argument(flag.name, action="append", default=[], metavar=flag.metavar, help=flag.help)
    elif flag.choices:
        group.add_argument(flag.name, choices=flag.choices, default=default, help=flag.help)
    else:
        read = reading(flag.parse)
        group.add_argument(flag.name, type=read, default=default, metavar=flag.metavar, help=flag.help)


def run_options(parsed: argparse.Namespace) -> RunOptions:
    return from_flags(RunOptions, vars(parsed))


def add_draft_flags(parser: argparse.ArgumentParser) -> None:
    """For commands that plan for a draft model, or run one."""
    title = "speculative decoding: where drafts come from (default: off, or n-gram lookup with --speculative-tokens)"
    add_flags({"draft": parser.add_argument_group(title)})


def add_inspect_options(group: Group) -> None:
    """For commands that open the inspector's page over something that is over."""
    group.add_argument("--inspect", action="store_true", help="serve the inspector's page on this machine until Ctrl+C")
    group.add_argument(
        "--port",
        type=reading(_port),
        default=8001,
        help="port of the inspector's page (default 8001; 0: any free port)",
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > GREATEST_PORT:
        raise InputError(f"{text!r} is no port: give 1 to {GREATEST_PORT:,}, or 0 for any that is free")
    return int(text)
