"""The gateway in front of two real servers: calls and answers pass as they are, and each call reaches the replica that
suits it or has what it names."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from socket import create_server
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gateways import RunningGateway, running_gateway
from quire.serve.keys import Tenant, add_key
from quire.serve.settings import ServeSettings
from running_server import PLAIN, WAIT_SECONDS, RunningServer, running_server
from serve_kit import wait_for_tokens

pytestmark = pytest.mark.servers

SIZE = ("--pool", "4MiB", "--max-length", "1024", "--max-requests", "32", "--batch-tokens", "256")
LONG = "the quick brown fox sees the lazy dog " * 40
NAMES = ("a", "b")
Servers = tuple[RunningServer, RunningServer]


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    return file, add_key(file, Tenant("alice", "alice"))


@pytest.fixture(scope="module")
def servers(tiny_folder: Path, key_file: tuple[Path, str]) -> Iterator[Servers]:
    options = (str(tiny_folder), *SIZE, "--keys", str(key_file[0]), "--open-metrics", "--model-name", "tiny")
    with running_server(*options, model="tiny") as one, running_server(*options, model="tiny") as other:
        yield one, other


@pytest.fixture
def gateway(servers: Servers) -> Iterator[RunningGateway]:
    with running_gateway(ServeSettings(body_bytes=256 << 10)) as gateway:
        gateway.knows(**dict(zip(NAMES, servers, strict=True)))
        yield gateway


@pytest.fixture
def client(gateway: RunningGateway, key_file: tuple[Path, str]) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {key_file[1]}"}
    with httpx.Client(base_url=gateway.address, headers=headers, timeout=WAIT_SECONDS, verify=PLAIN) as client:
        yield client


def chat_body(text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **more}


def test_the_official_clients_work_through_it(gateway: RunningGateway, key_file: tuple[Path, str]) -> None:
    """Whole, streamed, as Responses and as Messages. Red: a header or an encoding that does not survive the way."""
    key, asked = key_file[1], {"model": "tiny", "max_tokens": 6, "temperature": 0}
    messages: Any = [{"role": "user", "content": "fox"}]
    with openai.OpenAI(base_url=f"{gateway.address}/v1", api_key=key, max_retries=0) as client:
        whole = client.chat.completions.create(messages=messages, **asked).choices[0].message.content
        chunks = client.chat.completions.create(messages=messages, stream=True, **asked)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
        answer = client.responses.create(model="tiny", input="fox", max_output_tokens=16, temperature=0)
        follow = client.responses.create(
            model="tiny", input="and", max_output_tokens=16, previous_response_id=answer.id, temperature=0
        )
        assert follow.previous_response_id == answer.id
    with anthropic.Anthropic(base_url=gateway.address, api_key=key, max_retries=0) as other:
        message = other.messages.create(messages=messages, model="tiny", max_tokens=6)
        assert message.usage.output_tokens > 0


def test_the_second_turn_of_a_conversation_goes_where_the_first_one_was(client: httpx.Client) -> None:
    """And reuses it, for conversations on both replicas. Red: a router that is not asked."""
    begun = [client.post("/v1/chat/completions", json=chat_body(f"{number} {LONG}")) for number in range(4)]
    homes = [answer.headers["x-quire-replica"] for answer in begun]
    assert set(homes) == set(NAMES)
    for number, (home, first) in enumerate(zip(homes, begun, strict=True)):
        body = chat_body(f"{number} {LONG}")
        body["messages"] += [first.json()["choices"][0]["message"], {"role": "user", "content": "go on"}]
        second = client.post("/v1/chat/completions", json=body)
        assert second.headers["x-quire-replica"] == home
        assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 300


def test_what_a_call_names_is_found_on_the_replica_that_has_it(client: httpx.Client) -> None:
    """Stored responses, explanations, aborts, leases and forks, of calls on either replica; what neither has is refused
    as by one server."""
    for name in NAMES:
        pinned = {"x-quire-replica": name}
        stored = client.post("/v1/responses", json={"model": "tiny", "input": "fox"}, headers=pinned).json()["id"]
        asked = client.post("/v1/chat/completions", json=chat_body(f"{name} {LONG}"), headers=pinned).json()["id"]
        lease = {"messages": chat_body(f"{name} {LONG}")["messages"], "seconds": 60, "name": f"lease-{name}"}
        granted = client.post("/v1/leases", json=lease)
        fork = chat_body("", fork_from={"id": asked}, messages=[])
        answers = [
            client.get(f"/v1/responses/{stored}"),
            client.get(f"/v1/requests/{asked.rpartition('-')[2]}/explain"),
            client.post(f"/v1/requests/{asked.rpartition('-')[2]}/abort"),
            granted,
            client.get(f"/v1/leases/lease-{name}"),
            client.post("/v1/chat/completions", json=fork),
        ]
        assert [(one.status_code, one.headers["x-quire-replica"]) for one in answers] == [(200, name)] * len(answers)
    assert {lease["name"] for lease in client.get("/v1/leases").json()["data"]} >= {"lease-a", "lease-b"}
    assert client.delete("/v1/leases/lease-b").headers["x-quire-replica"] == "b"
    unknown = client.get("/v1/responses/resp_0")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    follow = client.post("/v1/responses", json={"model": "tiny", "input": "x", "previous_response_id": "resp_0"})
    assert follow.json()["error"]["code"] == "previous_response_not_found"


def test_a_lease_that_moves_along_stays_on_its_replica(client: httpx.Client) -> None:
    """Even when the conversation begins anew, so that nothing else draws it there."""
    for name in NAMES:
        retain = {"seconds": 60, "session": f"moves-{name}"}
        pinned = {"x-quire-replica": name}
        client.post("/v1/chat/completions", json=chat_body(f"{name} once", retain=retain), headers=pinned)
        moved = client.post("/v1/chat/completions", json=chat_body(f"another {name} {LONG}", retain=retain))
        assert moved.headers["x-quire-replica"] == name


def test_metrics_and_the_cache_are_those_of_all_replicas(client: httpx.Client) -> None:
    """Each sample has its replica, each metric is described once; dropping the cache drops it everywhere."""
    text = client.get("/metrics").text
    for name in NAMES:
        assert f'quire_requests_running{{replica="{name}"}} 0' in text
    types = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types)) > 30
    for name in NAMES:
        client.post("/v1/chat/completions", json=chat_body(f"{name} {LONG}"), headers={"x-quire-replica": name})
    before = client.get("/v1/cache").json()["kinds"]
    assert client.delete("/v1/cache").json()["dropped_units"] > 1
    assert sum(kind["cached_pages"] for kind in before) > 0


def test_refusals_are_those_of_the_server(client: httpx.Client, gateway: RunningGateway) -> None:
    nobody = httpx.post(f"{gateway.address}/v1/chat/completions", json=chat_body("fox"))
    assert (nobody.status_code, nobody.json()["error"]["code"]) == (401, "invalid_api_key")
    broken = client.post("/v1/chat/completions", content=b'{"model": ')
    assert broken.status_code == 400
    large = client.post("/v1/chat/completions", json=chat_body("fox " * (80 << 10)))
    assert large.status_code == 413
    absent = client.get("/v1/models", headers={"x-quire-replica": "c"})
    assert (absent.status_code, absent.json()["error"]["code"]) == (404, "replica_not_found")


def test_a_client_that_leaves_ends_its_request_on_the_replica(client: httpx.Client, servers: Servers) -> None:
    """Red: a gateway that reads on for nobody."""
    left = [server.metric("quire_disconnects_total") for server in servers]
    body = chat_body("fox", stream=True, max_tokens=900)
    with client.stream("POST", "/v1/chat/completions", json=body, headers={"x-quire-replica": "a"}) as answer:
        wait_for_tokens(answer.iter_lines(), 2)
    servers[0].until("it has left", lambda: servers[0].metric("quire_disconnects_total") == left[0] + 1)
    servers[0].until("it is idle", servers[0].is_audited)


def test_a_replica_that_takes_no_connections_is_left_out(
    client: httpx.Client, gateway: RunningGateway, servers: Servers
) -> None:
    """Calls go to the other one, without an error; when no replica is left, the error says so."""
    gateway.knows(a="http://127.0.0.1:9", b=servers[1])
    for number in range(3):
        answer = client.post("/v1/chat/completions", json=chat_body(f"{number} fox"))
        assert (answer.status_code, answer.headers["x-quire-replica"]) == (200, "b")
    assert 'replica="b"' in client.get("/metrics").text
    gateway.knows(a="http://127.0.0.1:9")
    answer = client.post("/v1/chat/completions", json=chat_body("fox"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")
    assert client.get("/health/ready").status_code == 503


def test_an_answer_that_is_cut_is_not_completed(client: httpx.Client, gateway: RunningGateway) -> None:
    """It has begun, so it cannot become an error: its connection is closed early. Red: another answer after half of
    this one, or half of an answer that looks whole."""
    with create_server(("127.0.0.1", 0)) as listener:
        cut = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(cut)

        threading.Thread(target=serve, daemon=True).start()
        gateway.knows(a=f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("/v1/responses/resp_1")


def test_a_gateway_that_drains_takes_no_more_calls(client: httpx.Client, gateway: RunningGateway) -> None:
    """And is not ready, while what has begun can still be asked about."""
    gateway.gateway.is_draining = True
    refused = [client.post("/v1/chat/completions", json=chat_body("fox")), client.get("/health/ready")]
    assert [(one.status_code, one.json()["error"]["code"]) for one in refused] == [(503, "draining")] * 2
    assert client.get("/v1/models").status_code == 200


def test_a_replica_that_dies_ends_its_streams_with_an_error(
    tiny_folder: Path, servers: Servers, client: httpx.Client, gateway: RunningGateway
) -> None:
    """In the form of each API; calls on the other replica are unaffected. Red: a stream that ends as if it were
    complete, or never."""
    bodies = {
        "/v1/chat/completions": chat_body("fox", stream=True, max_tokens=900),
        "/v1/responses": {"model": "tiny", "stream": True, "input": "fox", "ignore_eos": True},
    }
    with ExitStack() as stack:
        third = stack.enter_context(running_server(str(tiny_folder), *SIZE, "--model-name", "tiny", model="tiny"))
        gateway.knows(b=servers[1], c=third)
        pinned = {"x-quire-replica": "c"}
        streams = [
            stack.enter_context(client.stream("POST", path, json=body, headers=pinned)) for path, body in bodies.items()
        ]
        lines = [stream.iter_lines() for stream in streams]
        begun = [next(line for line in each if line.startswith("data: ")) for each in lines]
        os.kill(third.engine, signal.SIGSTOP)  # else the streams could be over
        third.process.kill()
        ends = ["\n".join(each) for each in lines]
        os.kill(third.engine, signal.SIGKILL)
        assert len(begun) == len(bodies)
        assert all("replica_gone" in end and "[DONE]" not in end for end in ends)
        assert client.post("/v1/chat/completions", json=chat_body("fox")).headers["x-quire-replica"] == "b"
