"""With several HTTP processes each of them shows the same engine, and the hub asks it for all of them."""

from __future__ import annotations

import json
from typing import Any

import httpx

from fronts_kit import client_of_each
from quire.inspect.difference import applied
from running_server import RunningServer
from serve_kit import CHAT, body, wait_for_tokens

INSPECT = "/v1/inspect"
LONG = {"max_tokens": 400, "stream": True, "ignore_eos": True}


def test_every_process_shows_the_request_of_any_of_them(
    server: RunningServer, clients: dict[int, httpx.Client]
) -> None:
    with clients[1].stream("POST", CHAT, json=body(**LONG)) as stream:
        lines = stream.iter_lines()  # kept: the client would leave without it
        name = wait_for_tokens(lines, 2)["id"].partition("-")[2] + "-0"
        for client in clients.values():
            server.until("it shows it", lambda client=client: name in client.get(INSPECT).text)
            assert client.get(f"{INSPECT}/requests/{name}").json()["status"] == "running"
            with client.stream("GET", f"{INSPECT}/stream", params={"frames": 2}) as frames:
                whole: Any = None
                for line in frames.iter_lines():
                    if line.startswith("data: "):
                        whole = applied(whole, json.loads(line.removeprefix("data: ")))
            assert name in whole["requests"]["table"]["name"]


def test_no_process_shows_the_request_of_another_key(server: RunningServer, keys: Any) -> None:
    with (
        client_of_each(server, keys.alice) as alices,
        client_of_each(server, keys.bob) as bobs,
        bobs[2].stream("POST", CHAT, json=body(**LONG)) as stream,
    ):
        lines = stream.iter_lines()  # kept: the client would leave without it
        name = wait_for_tokens(lines, 2)["id"].partition("-")[2]
        for client in alices.values():
            shown = client.get(INSPECT).json()
            server.until("it is counted", lambda c=client: c.get(INSPECT).json()["requests"]["others"]["running"] > 0)
            assert name not in json.dumps(shown)
            assert "bob" not in json.dumps(shown)
            assert client.get(f"{INSPECT}/requests/{name}-0").status_code == 404
