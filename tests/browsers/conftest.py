"""The inspector's page in browsers, against servers of a tiny model. `make browsers` runs these tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import HERE, Browser, driven, program_of
from quire.serve.keys import Tenant, add_key
from running_server import RunningServer, running_server
from tiny_folder import make_folder

STEP_SECONDS = 2.0
SIZE = ("--pool", "24MiB", "--max-length", "512", "--max-requests", "32", "--batch-tokens", "256", "--queue", "256")


def _missing(kind: str) -> str:
    """Why this browser cannot be driven; empty if it can."""
    if program_of(kind) is None:
        return f"{kind} is not installed"
    if shutil.which("node") is None or not (HERE / "node_modules").is_dir():
        return "node or its packages are not installed: run make browsers"
    return ""


@pytest.fixture(scope="session", params=["chrome", "firefox"])
def browser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if why := _missing(request.param):
        pytest.skip(why)
    with driven(request.param, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """For what is the same in every browser, or only this one can be asked."""
    if why := _missing("chrome"):
        pytest.skip(why)
    with driven("chrome", tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With so many layers that a request lasts for as long as a page needs to show it."""
    return make_folder(tmp_path_factory.mktemp("tiny"), layers=48)


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[RunningServer]:
    """Without keys."""
    more = ("--model-name", "tiny", "--step-seconds", str(STEP_SECONDS))
    with running_server(str(folder), *SIZE, *more, model="tiny") as server:
        yield server


@pytest.fixture(scope="session")
def keyed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, str, str]]:
    """With keys of Alice and Bob, neither of them an admin's."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    alice, bob = (add_key(file, Tenant(name, name)) for name in ("alice", "bob"))
    with running_server(str(folder), *SIZE, "--model-name", "tiny", "--keys", str(file), model="tiny") as server:
        yield server, alice, bob
