"""A server with three HTTP processes, and which of them has a connection."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from running_server import RunningServer, running_server
from serve_kit import SIZE

FRONTS = (1, 2, 3)
_numbers = itertools.count()


@contextmanager
def three_fronts(
    tiny_folder: Path, *more: str, freeze_file: Path | None = None, environment: dict[str, str] | None = None
) -> Iterator[RunningServer]:
    """`freeze_file`: while it exists, the engine stands still."""
    options = ("--model-name", "tiny", "--http-processes", "3", *more)
    drill = {} if freeze_file is None else {"QUIRE_DRILL_FREEZE_FILE": str(freeze_file)}
    environment = {**drill, **(environment or {})}
    with running_server(str(tiny_folder), *SIZE, *options, model="tiny", environment=environment) as server:
        yield server


@contextmanager
def standing_still(freeze_file: Path) -> Iterator[None]:
    """The engine finishes no step, so that nothing depends on who is faster."""
    freeze_file.touch()
    try:
        yield
    finally:
        freeze_file.unlink(missing_ok=True)


def front_of(server: RunningServer, client: httpx.Client) -> int:
    """The process that answers on this client's connection, by its line in the log."""
    name = f"which-{next(_numbers)}"
    assert client.get("/v1/models", headers={"x-request-id": name}).status_code == 200

    def lines() -> list[int]:
        return [line["front"] for line in server.told("request") if line["request"] == name]

    server.until("the call is logged", lambda: bool(lines()))
    return lines()[0]


@contextmanager
def client_of_each(server: RunningServer, key: str | None = None) -> Iterator[dict[int, httpx.Client]]:
    """By front: a client whose one connection it has."""
    with ExitStack() as stack:
        found: dict[int, httpx.Client] = {}
        while len(found) < len(FRONTS):
            client = stack.enter_context(server.client(key, limits=httpx.Limits(max_connections=1)))
            found.setdefault(front_of(server, client), client)
        yield found
