"""An engine's process without an engine: each step gives every open request its next token. Steps follow each other as
fast as the pipe takes them, or after a pause. `bench/http_cost.py` starts it in the engine's place."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from multiprocessing.connection import Connection

from quire.core.request import Request
from quire.serve.fronts.routing import Router
from quire.serve.messages import Cancel, EngineSetup, EngineTick, Ready, RequestUpdate, Submit

TOKENS = "QUIRE_BENCH_TOKENS"
"""The environment variable with the tokens of an answer, as JSON."""
STEP_SECONDS = "QUIRE_BENCH_STEP_SECONDS"
"""And the one with the time of a step."""


class Double:
    def __init__(self, connection: Connection, tokens: list[int], step_seconds: float, router: Router | None) -> None:
        self.router = router
        self.connection, self.tokens, self.step_seconds = connection, tokens, step_seconds
        self.next_at = 0.0
        self.steps = 0
        self.open: dict[str, tuple[Request, int]] = {}
        """By request: how many tokens it has."""

    def run(self) -> None:
        while True:
            while self.connection.poll(None if not self.open else 0):
                self.execute(self.connection.recv())
            self.step()

    def execute(self, command: object) -> None:
        if isinstance(command, Submit):
            if self.router is not None:
                self.router.note(command)
            self.open.update({one.name: (one, 0) for one in command.requests})
        elif isinstance(command, Cancel):
            for name in command.names:
                self.open.pop(name, None)

    def step(self) -> None:
        self.steps += 1
        time.sleep(max(0.0, self.next_at - time.monotonic()))
        self.next_at = max(self.next_at, time.monotonic() - self.step_seconds) + self.step_seconds
        tokens: dict[str, tuple[int, ...]] = {}
        updates: list[RequestUpdate] = []
        for name, (request, had) in list(self.open.items()):
            token = (self.tokens[(had + len(request.prompt)) % len(self.tokens)],)
            is_last = had + 1 == request.max_tokens
            if had and not is_last:
                tokens[name] = token
            else:
                hit, ending = None if had else 0, "length" if is_last else ""
                updates.append(RequestUpdate(name, token, hit_tokens=hit, ending=ending))
            self.open[name] = (request, had + 1)
            if is_last:
                del self.open[name]
        tick = EngineTick(self.steps, not self.open, tokens, tuple(updates))
        self.connection.send(tick if self.router is None else self.router.routed(tick))


if __name__ == "__main__":
    connection = Connection(int(sys.argv[1]))
    setup: EngineSetup = connection.recv()
    connection.send(Ready())
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        router = Router() if setup.has_fronts else None
        Double(connection, json.loads(os.environ[TOKENS]), float(os.environ[STEP_SECONDS]), router).run()
