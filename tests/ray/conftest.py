"""Two replicas of the default model on a Ray of their own, and a cluster that other tests share. `make ray` runs all in
an environment with Ray."""

from __future__ import annotations

from collections.abc import Iterator
from socket import create_server

import pytest

from deployed import Deployed, deployed
from shared_head import Head, shared_head

SIZE = ("--pool", "128MiB", "--max-length", "1024", "--max-requests", "8", "--batch-tokens", "256", "--threads", "1")


@pytest.fixture(scope="session")
def deployment() -> Iterator[Deployed]:
    with create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with deployed(*SIZE, "--replicas", "2", "--device", "cpu", "--port", str(port)) as running:
        yield running


@pytest.fixture(scope="session")
def head() -> Iterator[Head]:
    with shared_head() as running:
        yield running
