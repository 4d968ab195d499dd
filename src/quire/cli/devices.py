"""The accelerators that --device knows, and the memory that their drivers report."""

from __future__ import annotations

import argparse

from quire.cli.text import table
from quire.core.units import format_bytes
from quire.planner.devices import DEVICES, device_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(options: argparse.Namespace) -> None:
    del options
    rows = [(name, format_bytes(device_bytes(name))) for name in sorted(DEVICES, key=lambda name: DEVICES[name])]
    table(("device", "memory"), rows)
