"""Clients of a served model whose processes are killed and stopped: what each of them got, and when."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from running_server import RunningServer
from serve_kit import CHAT, body

GONE = "is lost"
"""In the error of a request that had a row."""


@dataclass
class Call:
    """One streamed answer."""

    tokens: int = 0
    error: str = ""
    ended_at: float = 0.0

    @property
    def is_complete(self) -> bool:
        return not self.error


@dataclass
class Crowd:
    """As many calls as there are clients, one after another each, until they are told to stop."""

    server: RunningServer
    clients: int
    max_tokens: int
    calls: list[Call] = field(default_factory=list)

    def start(self) -> None:
        self.calls = [Call() for _ in range(self.clients)]
        self._threads = [threading.Thread(target=self._ask, args=pair, daemon=True) for pair in enumerate(self.calls)]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join()

    @property
    def have_tokens(self) -> int:
        return sum(call.tokens > 0 for call in self.calls)

    def _ask(self, number: int, call: Call) -> None:
        asked: dict[str, Any] = body(max_tokens=self.max_tokens, stream=True, ignore_eos=True, seed=number)
        asked["messages"] = [{"role": "user", "content": f"{number} the quick brown fox " * (1 + number)}]
        try:
            with self.server.client() as client, client.stream("POST", CHAT, json=asked) as stream:
                for line in stream.iter_lines():
                    if '"error"' in line:
                        call.error = line
                    elif line.startswith("data: {"):
                        call.tokens += 1
        except httpx.HTTPError as error:
            call.error = f"cut: {error!r}"
        call.ended_at = time.monotonic()


def is_alive(process: int) -> bool:
    """Neither ended nor waiting to be reaped."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def processes_of(server: RunningServer) -> list[int]:
    """The engine's, which is rank 0, and those of the other ranks."""
    ready = server.told("engine_ready")[-1]
    return [int(ready["process"]), *ready["ranks"]]


def signal_rank(process: int, number: int) -> float:
    """When it was sent."""
    os.kill(process, number)
    return time.monotonic()
