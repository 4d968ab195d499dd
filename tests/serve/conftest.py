"""A server of the default model, and the folder of a tiny one that answers at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.fetch.default import fetch_default
from running_server import RunningServer, running_server


@pytest.fixture(scope="session")
def default_server() -> Iterator[RunningServer]:
    size = ("--pool", "128MiB", "--max-length", "512", "--max-requests", "8", "--batch-tokens", "512")
    with running_server(str(fetch_default()), *size, model="smollm2-135m-instruct") as server:
        yield server


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_folder import make_folder  # imports torch, which most of these tests do without

    return make_folder(tmp_path_factory.mktemp("tiny"))
