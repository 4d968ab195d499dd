"""One server with three HTTP processes for all tests of this folder, and a client for each of them. Only one worker of
a run has tests of this folder, so the server starts once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from fronts_kit import client_of_each, three_fronts
from quire.serve.keys import Tenant, add_key
from running_server import RunningServer


@dataclass(frozen=True)
class Keys:
    file: Path
    alice: str
    bob: str
    pair: str
    """Two requests at once."""
    metered: str
    """Tokens by the minute."""


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    tenants = (
        Tenant("alice", "alice"),
        Tenant("bob", "bob"),
        Tenant("pair", "pair", most_requests=2),
        Tenant("metered", "metered", tokens_per_minute=600),
    )
    return Keys(file, *(add_key(file, tenant) for tenant in tenants))


@pytest.fixture(scope="session")
def freeze_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drill") / "freeze"


@pytest.fixture(scope="session")
def server(tiny_folder: Path, keys: Keys, freeze_file: Path) -> Iterator[RunningServer]:
    more = ("--keys", str(keys.file), "--open-metrics")
    with three_fronts(tiny_folder, *more, freeze_file=freeze_file) as server:
        yield server


@pytest.fixture
def clients(server: RunningServer, keys: Keys) -> Iterator[dict[int, httpx.Client]]:
    """Of Alice."""
    with client_of_each(server, keys.alice) as found:
        yield found
