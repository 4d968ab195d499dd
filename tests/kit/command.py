"""Runs the `quire` command inside a test."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.cli.main import main


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == code
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def run_text(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Exit 2, nothing on standard output, one line on standard error."""
    try:
        code = main(list(arguments))
    except SystemExit as stop:  # argparse leaves this way
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err
