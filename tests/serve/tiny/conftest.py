"""One server with keys for all tests of this folder, on a tiny model that answers at once. Only one worker of a run
has tests of this folder, so the server starts once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from quire.serve.keys import Tenant, add_key
from running_server import RunningServer, running_server
from serve_kit import SIZE

STEP_SECONDS = 5.0
"""Without a step for as long as this, there is no progress. A machine that does much else still makes steps."""


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
    hoarder: str
    """A few leases."""


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
        Tenant("hoarder", "hoarder", lease_bytes=300 << 10),
    )
    return Keys(file, *(add_key(file, tenant) for tenant in tenants))


@pytest.fixture(scope="session")
def freeze_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drill") / "freeze"


@pytest.fixture(scope="session")
def tiny_server(tiny_folder: Path, keys: Keys, freeze_file: Path) -> Iterator[RunningServer]:
    names = ("--model-name", "tiny", "--model-name", "tiny-alias", "--tool-dialect", "hermes")
    more = ("--keys", str(keys.file), "--open-metrics", *names, "--step-seconds", str(STEP_SECONDS))
    limits = ("--body-bytes", "256KiB", "--body-seconds", "2", "--header-seconds", "2", "--request-seconds", "600")
    drill = {"QUIRE_DRILL_FREEZE_FILE": str(freeze_file), "OMP_DISPLAY_ENV": "true"}
    with running_server(str(tiny_folder), *SIZE, *more, *limits, model="tiny", environment=drill) as server:
        yield server


@pytest.fixture
def client(tiny_server: RunningServer, keys: Keys) -> Iterator[httpx.Client]:
    with tiny_server.client(keys.alice) as client:
        yield client
