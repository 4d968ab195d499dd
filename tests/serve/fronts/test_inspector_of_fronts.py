"""With several HTTP processes each of them shows the same engine, and the hub asks it for all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import httpx

from running_server import RunningServer
from serve_kit import CHAT, body, wait_for_tokens

INSPECT = "/v1/inspect"
LONG = {"max_tokens": 400, "stream": True, "ignore_eos": True}


def while_running(asking: httpx.Client, holds: Callable[[str], bool]) -> bool:
    """Whether it is so while a request of this client is in progress; it gets the request's name."""
    with asking.stream("POST", CHAT, json=body(**LONG)) as stream:
        lines = stream.iter_lines()  # kept: the client would leave without it
        return holds(wait_for_tokens(lines, 2)["id"].partition("-")[2] + "-0")


def document_has(client: httpx.Client, name: str) -> bool:
    return name in client.get(INSPECT).text


def stream_has(client: httpx.Client, name: str) -> bool:
    with client.stream("GET", f"{INSPECT}/stream", params={"frames": 1}) as frames:
        return name in "".join(frames.iter_lines())


def explains(client: httpx.Client, name: str) -> bool:
    answer = client.get(f"{INSPECT}/requests/{name}")
    return answer.status_code == 200 and answer.json()["name"] == name


def counts_others(client: httpx.Client, _name: str) -> bool:
    return bool(client.get(INSPECT).json()["requests"]["others"]["running"])


def test_every_process_shows_the_request_of_any_of_them(
    server: RunningServer, clients: dict[int, httpx.Client], keys: Any
) -> None:
    """In its document, in its stream and by its name. A request is over soon, so each question is about a new one."""
    with server.client(keys.alice) as asking:
        for client in clients.values():
            for shows in (document_has, stream_has, explains):
                server.until(shows.__name__, partial(while_running, asking, partial(shows, client)))


def test_no_process_shows_the_request_of_another_key(
    server: RunningServer, clients: dict[int, httpx.Client], keys: Any
) -> None:
    """It is counted, without a name."""
    with server.client(keys.bob) as asking:
        for client in clients.values():
            server.until("it is counted", partial(while_running, asking, partial(counts_others, client)))
            for shows in (document_has, stream_has, explains):
                assert not while_running(asking, partial(shows, client))
            assert "bob" not in client.get(INSPECT).text
