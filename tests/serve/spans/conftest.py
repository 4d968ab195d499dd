"""One server with keys that sends spans, for all tests of this folder, and the collector that receives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector import Collector, collector
from quire.serve.keys import Tenant, add_key
from running_server import RunningServer, running_server
from span_kit import SOON, Keys

SIZE = ("--pool", "4MiB", "--max-length", "1024", "--max-requests", "4", "--batch-tokens", "64")


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    return Keys(file, *(add_key(file, Tenant(name, name)) for name in ("alice", "bob")))


@pytest.fixture(scope="session")
def spans() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture(scope="session")
def server(tiny_folder: Path, keys: Keys, spans: Collector) -> Iterator[RunningServer]:
    """Told where by the flag; the test of several processes uses the environment."""
    more = ("--keys", str(keys.file), "--open-metrics", "--model-name", "tiny", "--otel", spans.address)
    with running_server(str(tiny_folder), *SIZE, *more, model="tiny", environment=SOON) as server:
        yield server
