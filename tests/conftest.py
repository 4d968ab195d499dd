"""Continuous integration tries the same examples every time, so that a red run can be repeated. Where there is no GPU,
kernels run under Triton's interpreter: it must be told before anything, torch too, looks for Triton."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from types import FunctionType

import pytest
from hypothesis import settings

if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


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
