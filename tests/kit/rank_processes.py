"""Ranks that confirm steps and compute nothing, as real processes with real pipes."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from quire.options.child import python
from quire.ranks.channel import Channel
from quire.ranks.group import Group, Link

PROGRAM = """
import socket, sys, os, signal, time
from quire.ranks.channel import Channel, Inbox, Kind
signal.signal(signal.SIGINT, signal.SIG_IGN)
channel = Channel(socket.socket(fileno=int(sys.argv[1])))
inbox = Inbox(channel)
channel.send_json({"pid": os.getpid()})
number = 0
while True:
    message = inbox.take()
    if message.kind is Kind.RECORD:
        order = message.json()["number"]
        channel.send_json({"taken": order}, Kind.RECORD)
        channel.send_json({"number": order}, Kind.RECORD)
    if message.kind is Kind.STEP:
        if message.data == b"exit":
            sys.exit(3)
        if message.data == b"fail":
            channel.send_json({"failed": "it does not feel like it"})
            time.sleep(60)
        number += 1
        channel.send_done(number)
"""


def start_rank(number: int) -> Link:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [*python("-c", PROGRAM), str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=sys.stderr)
    return Link(number, Channel(ours), process)


@contextmanager
def group_of(ranks: int, seconds: float = 60.0) -> Iterator[tuple[Group, list[str]]]:
    """Ranks 1, 2, … that have said who they are; and what was reported as lost."""
    lost: list[str] = []
    group = Group([start_rank(number) for number in range(1, ranks)], seconds, lost.append)
    try:
        pids = [link.process.pid for link in group.links if link.process is not None]
        assert [answer["pid"] for answer in group.answers()] == pids
        yield group, lost
    finally:
        group.close()
        assert all(link.process is not None and link.process.poll() is not None for link in group.links)
