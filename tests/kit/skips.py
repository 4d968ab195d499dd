"""What a run skips and why, before its first test; how many tests of the default model it ran, after its last.

A worker of pytest-xdist collects the tests and writes what it skips to a file; the process that prints reads it.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from _pytest.skipping import evaluate_skip_marks

FILE = "skips_file"


class Skips:
    """A plugin: `tests/conftest.py` registers one in each process."""

    def __init__(self) -> None:
        self._files: Counter[str] = Counter()
        """Files that are skipped as a whole, by reason."""
        self._tests: Counter[str] = Counter()
        self._folders = ExitStack()
        self._is_printed = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._files[_reason(report.longrepr)] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        asked = [item for item in items if item.get_closest_marker("network")]
        if asked and (missing := _missing_model()):
            for item in asked:
                item.add_marker(pytest.mark.skip(reason=missing))
        self._tests = Counter(skip.reason for item in items if (skip := evaluate_skip_marks(item)))
        if file := getattr(config, "workerinput", {}).get(FILE):
            Path(file).write_text(json.dumps(self._lines()))

    def _lines(self) -> list[str]:
        counted = [(count, "file", reason) for reason, count in self._files.items()]
        counted += [(count, "test", reason) for reason, count in self._tests.items()]
        lines = [f"skipped: {count} {what}{'s' if count > 1 else ''}: {reason}" for count, what, reason in counted]
        return lines or ["skipped: nothing that is known before the first test"]

    def pytest_report_collectionfinish(self) -> list[str]:
        return self._lines()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[FILE] = str(Path(self._folders.enter_context(TemporaryDirectory())) / "skips.json")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        if not self._is_printed:
            self._is_printed = True
            reporter = node.config.pluginmanager.get_plugin("terminalreporter")
            for line in json.loads(Path(node.workerinput[FILE]).read_text()):
                reporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        self._folders.close()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        ended = {
            outcome: sum("network" in getattr(one, "keywords", ()) for one in terminalreporter.getreports(outcome))
            for outcome in ("passed", "failed", "skipped")
        }
        if sum(ended.values()):
            counted = ", ".join(f"{count} {outcome}" for outcome, count in ended.items() if count)
            terminalreporter.write_line(f"tests of the default model: {counted}", red=not ended["passed"])


def _missing_model() -> str:
    """Why there is no default model here, or nothing. Imported late: torch must not come before `conftest.py`."""
    from quire.fetch.default import fetch_default
    from quire.fetch.errors import FetchError

    try:
        fetch_default()
    except FetchError as error:
        return f"the default model cannot be fetched: {error}"
    return ""


def _reason(longrepr: object) -> str:
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return str(reason).removeprefix("Skipped: ")
