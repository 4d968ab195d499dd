"""The end of an engine that still writes to its tiers, or has not started yet."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path

import pytest

from quire.options.child import python
from quire.options.run import RunOptions
from quire.serve.client import EngineClient
from quire.serve.frames import FramePipe
from quire.serve.messages import EngineSetup
from quire.serve.progress import Progress
from quire.serve.starting import Life


class Ending:
    """A process that ends by itself when it was asked about so often; or when it is killed."""

    def __init__(self, asked: int) -> None:
        self.left, self.is_killed = asked, False

    def poll(self) -> int | None:
        self.left -= 1
        return 0 if self.left < 0 or self.is_killed else None

    def kill(self) -> None:
        self.is_killed = True


@pytest.mark.parametrize(("is_hurried", "is_killed"), [(False, False), (True, True)])
def test_an_engine_that_still_writes_to_its_tiers_is_waited_for_unless_somebody_hurries(
    is_hurried: bool, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.serve.client.CLOSE_SECONDS", 0.0)

    async def closed() -> Ending:
        client = EngineClient(EngineSetup(Path(), {}, RunOptions()), Progress(1), lambda *_a, **_k: None)
        process, (ours, theirs) = Ending(5), socket.socketpair()
        with ours, theirs:
            client._life = Life(process, FramePipe(ours), 0.0)  # type: ignore[arg-type]
            client.is_hurried = is_hurried
            await client.close(seconds=1000.0)
        return process

    assert asyncio.run(closed()).is_killed is is_killed


STARTING = """
import sys, threading
from multiprocessing.connection import Connection
from quire.serve.shared_pipe import ending_with_parent
with ending_with_parent(Connection(int(sys.argv[1]))):
    print("starting", flush=True)
    threading.Event().wait()
"""


def test_an_engine_that_starts_ends_with_its_server() -> None:
    """A command that waits in the pipe does not end it. Red: an engine that holds its device, its ranks or its place on
    a cluster for minutes after its server was killed."""
    ours, theirs = socket.socketpair()
    command = python("-c", STARTING, str(theirs.fileno()))
    with theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE)
    with process, ours:
        assert process.stdout is not None
        process.stdout.readline()
        ours.sendall(b"a command")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        ours.close()
        assert process.wait(60) == 1
