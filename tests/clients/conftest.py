"""Published clients against one `quire serve` of the default model. `make clients` runs these tests in .venv-clients;
SERVER_PYTHON is the interpreter that has Quire (.venv's without it)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from asked import MODEL, WAIT_SECONDS
from running_server import RunningServer, running_server

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("SERVER_PYTHON", str(ROOT / ".venv/bin/python"))
SIZE = ("--pool", "512MiB", "--max-length", "4096", "--max-requests", "8", "--batch-tokens", "512")
OFFLINE = {
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_PROXY": "127.0.0.1,localhost",
    "OPENAI_API_KEY": "none",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
os.environ.update(OFFLINE)  # clients read these when they are imported
os.environ.setdefault("OMP_NUM_THREADS", "1")


EXPAND = """
import sys
from pathlib import Path
from quire.worker.weights.expand import expand
expand(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's checkpoint, its weights expanded to 32-bit floats: clients that score texts are compared with
    transformers, to the same precision."""
    fetched = _output(PYTHON, "-m", "quire.cli.main", "fetch").split("\n")[0]
    target = tmp_path_factory.mktemp("checkpoint") / Path(fetched).name
    _output(PYTHON, "-P", "-c", EXPAND, fetched, str(target))
    return target


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_SECONDS).stdout


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[RunningServer]:
    with running_server(str(folder), *SIZE, model=MODEL, python=PYTHON) as server:
        yield server


@pytest.fixture(scope="session")
def v1(server: RunningServer) -> str:
    """The base URL that OpenAI's clients want."""
    return server.address + "/v1"
