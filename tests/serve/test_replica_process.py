"""The process of a replica, without Ray: it serves with options that were parsed elsewhere, says why it cannot, and
lives no longer than its parent."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.cli.configuration import complete
from quire.cli.deploy import _add, _passed_on
from quire.cli.main import build_parser
from quire.deploy.process import ReplicaFailed, ReplicaProcess
from running_server import PLAIN, WAIT_SECONDS
from serve_kit import SIZE

pytestmark = pytest.mark.servers

PARENT = """
import pickle, sys, time
from pathlib import Path
from quire.deploy.process import ReplicaProcess
replica = ReplicaProcess(pickle.loads(sys.stdin.buffer.read()), Path.cwd())
replica.wait_ready(300)
print(replica._process.pid, replica.address, flush=True)
time.sleep(300)
"""


def options_of(*words: str) -> dict[str, Any]:
    typed = build_parser().parse_args(["deploy", *words, "--device", "cpu", "--port", "0", "--replicas", "2"])
    return _passed_on(complete(_add, typed, "quire deploy"))


def test_a_replica_that_cannot_start_says_why_in_its_own_words(tmp_path: Path) -> None:
    replica = ReplicaProcess(options_of("/nowhere/at/all"), tmp_path)
    with pytest.raises(ReplicaFailed, match="/nowhere/at/all") as failure:
        replica.wait_ready(WAIT_SECONDS)
    assert "quire:" not in str(failure.value)
    assert not replica.is_running


def test_a_replica_serves_and_ends_with_its_parent(tiny_folder: Path) -> None:
    """Its parent is killed, as Ray's actor may be. Red: a server that is unknown to all, and keeps its GPU."""
    words = (str(tiny_folder), *SIZE, "--model-name", "tiny", "--threads", "1", "--page-tokens", "16")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    command = [sys.executable, "-P", "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        pickle.dump(options_of(*words), parent.stdin)
        parent.stdin.close()
        process, address = parent.stdout.readline().decode().split()
        body = {"model": "tiny", "prompt": "fox", "max_tokens": 3}
        answer = httpx.post(f"{address}/v1/completions", json=body, timeout=WAIT_SECONDS, verify=PLAIN)
        assert answer.status_code == 200, answer.text
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    end = time.monotonic() + WAIT_SECONDS
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() < end, "the replica has outlived its parent"
        time.sleep(0.05)


def test_a_replica_that_is_stopped_is_gone_and_counts_as_failed(tiny_folder: Path) -> None:
    """Red: a health check of Ray that passes for a server that has ended."""
    replica = ReplicaProcess(options_of(str(tiny_folder), *SIZE, "--threads", "1"), tiny_folder)
    replica.wait_ready(WAIT_SECONDS)
    replica.require_live()
    replica.stop(drain_seconds=5)
    assert not replica.is_running
    with pytest.raises(ReplicaFailed, match="exit code 0"):
        replica.require_live()
