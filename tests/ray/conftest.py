"""Two replicas of the default model, for all tests of this folder. `make ray` runs them in an environment with Ray."""

from __future__ import annotations

from collections.abc import Iterator
from socket import create_server

import pytest

from deployed import Deployed, deployed

SIZE = ("--pool", "128MiB", "--max-length", "1024", "--max-requests", "8", "--batch-tokens", "256", "--threads", "1")


@pytest.fixture(scope="session")
def deployment() -> Iterator[Deployed]:
    with create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with deployed(*SIZE, "--replicas", "2", "--device", "cpu", "--port", str(port)) as running:
        yield running
