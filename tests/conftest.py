"""Continuous integration tries the same examples every time, so that a red run can be repeated. Where there is no GPU,
kernels run under Triton's interpreter: it must be told before anything, torch too, looks for Triton."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
from hypothesis import settings

from examples import DEFAULT, examples
from skips import Skips

if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # of processes that tests start, too: each worker has one core
collect_ignore = ["browsers", "clients", "ray"]  # run by make browsers, make clients and make ray
settings.register_profile("here", examples(DEFAULT))
settings.register_profile("ci", examples(DEFAULT, derandomize=True))
settings.load_profile("ci" if os.environ.get("CI") else "here")


def _call(run: Callable[[], None]) -> None:
    run()


ROOMY = FunctionType(_call.__code__.replace(co_stacksize=70_000), globals())
"""Python keeps frames in chunks of 16 KiB, and asks the system for one and gives it back at each call that crosses the
end of a chunk: where a loop of the interpreter lies there, this is half of the time. A frame as large as this is given
a chunk of 1 MiB, and all calls below it use the rest of that."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    run = item.runtest
    item.runtest = lambda: ROOMY(run)  # type: ignore[method-assign]


FIRST = ("tests/serve/tiny", "tests/serve", "tests/torch")
"""Files that take longest begin first."""
SHARED = ("tests/serve/tiny/", "tests/serve/fronts/", "tests/serve/test_openai_", "tests/serve/test_anthropic_client")
"""Files that share a server go to one worker: those of each folder one, the others another."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Skips(), "skips")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((place for place, one in enumerate(FIRST) if item.nodeid.startswith(one)), 9))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from xdist.scheduler import LoadFileScheduling

    class ByServer(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(SHARED):
                return next((folder for folder in SHARED[:2] if nodeid.startswith(folder)), "default server")
            return str(super()._split_scope(nodeid))

    return ByServer(config, log)
