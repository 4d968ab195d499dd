"""Two servers for all tests of a session: the default model, and a tiny one with keys that answers at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quire.fetch.default import fetch_default
from quire.fetch.errors import FetchError
from quire.serve.keys import Tenant, add_key
from running_server import RunningServer, running_server
from serve_kit import SIZE

STEP_SECONDS = 1.0


@pytest.fixture(scope="session")
def default_server() -> Iterator[RunningServer]:
    try:
        folder = fetch_default()
    except FetchError as error:
        pytest.skip(f"the default model cannot be had here: {error}")
    size = ("--pool", "128MiB", "--max-length", "512", "--max-requests", "8", "--batch-tokens", "512")
    with running_server(str(folder), *size, model="smollm2-135m-instruct") as server:
        yield server


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_folder import make_folder  # imports torch, which most of these tests do without

    return make_folder(tmp_path_factory.mktemp("tiny"))


@dataclass(frozen=True)
class Keys:
    file: Path
    alice: str
    alices_other: str
    """Another key of the same scope."""
    bob: str
    slow: str
    """One request at once, few tokens."""
    admin: str
    brief: str
    """Sixty tokens a request."""


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    tenants = (
        Tenant("alice", "alice", weight=2),
        Tenant("alices-other", "alice"),
        Tenant("bob", "bob"),
        Tenant("slow", "slow", most_requests=1, most_tokens=400, tokens_per_minute=450),
        Tenant("admin", "admin", is_admin=True),
        Tenant("brief", "brief", most_tokens=60),
    )
    return Keys(file, *(add_key(file, tenant) for tenant in tenants))


@pytest.fixture(scope="session")
def freeze_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drill") / "freeze"


@pytest.fixture(scope="session")
def tiny_server(tiny_folder: Path, keys: Keys, freeze_file: Path) -> Iterator[RunningServer]:
    more = ("--keys", str(keys.file), "--model-name", "tiny", "--step-seconds", str(STEP_SECONDS))
    limits = ("--body-bytes", "256KiB", "--body-seconds", "2", "--header-seconds", "2", "--request-seconds", "60")
    drill = {"QUIRE_DRILL_FREEZE_FILE": str(freeze_file)}
    with running_server(str(tiny_folder), *SIZE, *more, *limits, model="tiny", environment=drill) as server:
        yield server
