"""The fronts' processes, as the hub sees them: starts them, hands them connections, notices when one has ended."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

from quire.options.child import python
from quire.serve.fronts.channel import Channel
from quire.serve.keys import Tenant

EXIT_SECONDS = 5.0
"""A front that takes longer to end is killed: uvicorn gives open connections 2 seconds."""
REAP_SECONDS = 1.0
LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class CountedCall:
    """A call that has entered and not left."""

    tenant: Tenant
    requests: int
    tokens: int


@dataclass(slots=True, eq=False)
class FrontProcess:
    """One process of a front, from start to end."""

    number: int
    process: subprocess.Popen[bytes]
    channel: Channel
    handover: socket.socket
    """Connections are handed over here."""
    started_at: float = field(default_factory=time.monotonic)
    is_started: bool = False
    is_gone: bool = False
    connections: int = 0
    """Handed over and not closed."""
    handed: int = 0
    """Connections so far."""
    calls: dict[int, CountedCall] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    """Requests that have not ended, as of its last beat and what it submitted since."""
    silent_looks: int = 0
    """Times that the hub looked and there was no beat."""

    def hand(self, connection: socket.socket) -> bool:
        """Whether the front could take it."""
        try:
            socket.send_fds(self.handover, [b"c"], [connection.fileno()])
        except OSError:
            return False
        self.connections, self.handed = self.connections + 1, self.handed + 1
        return True

    def drop(self) -> None:
        """Nothing is sent to it any more."""
        self.is_gone, self.is_started = True, False
        self.channel.close()
        self.handover.close()

    async def ended(self, seconds: float) -> int:
        """Its exit code; it is killed if it has not ended after this time."""
        begun = time.monotonic()
        while (code := self.process.poll()) is None:
            if time.monotonic() - begun > seconds:
                self.process.kill()
            await asyncio.sleep(LOOK_SECONDS)
        return code


def spawn(number: int) -> FrontProcess:
    """Raises OSError, and leaves nothing open, if there is no descriptor or memory."""
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
        pipe, its_pipe = socket.socketpair()
        undo.enter_context(pipe)
        theirs.enter_context(its_pipe)
        handover, its_handover = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.enter_context(handover)
        theirs.enter_context(its_handover)
        handover.setblocking(False)
        given = [its_pipe.fileno(), its_handover.fileno()]
        command = python("-m", "quire.serve.fronts.front", *map(str, given))
        process = subprocess.Popen(command, pass_fds=given, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        front = FrontProcess(number, process, Channel(pipe, waits=False), handover)
        undo.pop_all()
    return front
