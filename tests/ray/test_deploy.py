"""`quire deploy` on Ray: one address for two replicas, which die, start again and end without a trace."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from deployed import WAIT_SECONDS, Deployed

MODEL = "smollm2-135m-instruct"
ASKED: dict[str, Any] = {"model": MODEL, "temperature": 0}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PAUSE_SECONDS = 0.2
"""Of a client, so that replicas that start get some of a small machine."""
LONG = {"max_tokens": 600, "extra_body": {"ignore_eos": True}}


def official(deployment: Deployed) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{deployment.address}/v1", api_key="none", max_retries=0, timeout=WAIT_SECONDS)


def test_the_official_client_chats_whole_and_streamed(deployment: Deployed) -> None:
    with official(deployment) as client:
        whole = client.chat.completions.create(messages=QUESTION, max_tokens=12, **ASKED).choices[0].message.content
        chunks = list(client.chat.completions.create(messages=QUESTION, max_tokens=12, stream=True, **ASKED))
    assert "Paris" in (whole or "")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert len(chunks) > 5


def test_streams_are_not_buffered_and_a_client_that_leaves_ends_its_request(deployment: Deployed) -> None:
    """A token is read while hundreds of others are not computed yet; then the replica is idle. Red: a proxy on the way
    that reads the answer whole, or reads on after its client."""
    with official(deployment) as client:
        stream = client.chat.completions.create(messages=QUESTION, stream=True, **ASKED, **LONG)
        next(iter(stream))
        assert running(deployment) == 1
        stream.close()
    deployment.until("the request has ended", lambda: running(deployment) == 0)


def test_rays_own_processes_have_a_token_that_is_in_no_file(deployment: Deployed) -> None:
    """They run code that they are sent. Ray wrote their token to a file in the user's home that others may read. Red: a
    token that is not in their environment."""
    processes = deployment.processes("ray::")
    assert processes
    for process in processes:
        environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        assert any(re.fullmatch(rb"RAY_AUTH_TOKEN=[0-9a-f]{64}", one) for one in environment)


def test_a_proxy_has_a_minute_to_start(deployment: Deployed) -> None:
    """On a busy machine it takes more than Ray's 5 s. Red: a controller with Ray's own value."""
    (controller,) = deployment.processes("ray::ServeController")
    environment = Path(f"/proc/{controller}/environ").read_bytes().split(b"\0")
    assert b"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S=60" in environment


def running(deployment: Deployed) -> int:
    lines = httpx.get(f"{deployment.address}/metrics", timeout=WAIT_SECONDS).text.splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("quire_requests_running{"))


def test_the_second_turn_of_a_conversation_reuses_the_first(deployment: Deployed) -> None:
    """Conversations are spread over both replicas, and each stays where it is."""
    with deployment.client() as client:
        homes = []
        for number in range(4):
            said = [{"role": "user", "content": f"{number}. " + "Tell me a story about a fox and a dog. " * 20}]
            body = {**ASKED, "messages": said, "max_tokens": 8, "ignore_eos": True}
            first = client.post("/v1/chat/completions", json=body)
            body["messages"] += [first.json()["choices"][0]["message"], {"role": "user", "content": "Go on."}]
            second = client.post("/v1/chat/completions", json=body)
            assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 150
            assert second.headers["x-quire-replica"] == first.headers["x-quire-replica"]
            homes.append(first.headers["x-quire-replica"])
    assert len(set(homes)) == 2


@pytest.mark.parametrize("process", ["quire.cli.replica", "ray::ServeReplica:quire-replicas"])
def test_a_replica_that_is_killed_ends_its_own_streams_and_comes_back(deployment: Deployed, process: str) -> None:
    """Its clients get an error, those of the other replica get all of their answer, new requests are answered, and soon
    there are two again. The server's process is killed, then Ray's."""
    before = deployment.replicas()
    assert len(before) == 2
    with official(deployment) as client:
        streams = {
            name: client.chat.completions.create(
                messages=QUESTION, stream=True, **ASKED, **LONG, extra_headers={"x-quire-replica": name}
            )
            for name in before
        }
        for stream in streams.values():
            next(iter(stream))
        os.kill(deployment.processes(process)[0], signal.SIGKILL)
        ends = {name: end_of(stream) for name, stream in streams.items()}
        assert sorted(ends.values()) == ["error", "length"]
        (lost,) = (name for name, end in ends.items() if end == "error")
        answer = client.chat.completions.with_raw_response.create(messages=QUESTION, max_tokens=4, **ASKED)
        assert answer.headers["x-quire-replica"] in before - {lost}
    deployment.until("there are two again", lambda: len(deployment.replicas() - {lost}) == 2)
    assert len(deployment.processes("quire.cli.replica")) == 2


def code_of(client: openai.OpenAI) -> str | None:
    """The error's, of a short chat."""
    try:
        client.chat.completions.create(messages=QUESTION, max_tokens=1, **ASKED)
    except openai.APIStatusError as error:
        return error.code
    return None


def end_of(stream: Any) -> str:
    reason = ""
    try:
        for chunk in stream:
            reason = chunk.choices[0].finish_reason or reason
    except openai.APIError:
        return "error"
    return reason


def test_replicas_start_again_one_after_another_while_requests_are_answered(deployment: Deployed) -> None:
    """Red: a request that is refused or cut while a replica stops."""
    before, failures, count, is_over = deployment.replicas(), [], 0, threading.Event()

    def ask() -> None:
        nonlocal count
        with deployment.client() as client:
            while not is_over.is_set():
                body = {**ASKED, "messages": QUESTION, "max_tokens": 8, "ignore_eos": True}
                answer = client.post("/v1/chat/completions", json=body)
                count += 1
                is_over.wait(PAUSE_SECONDS)
                if answer.status_code != 200:
                    failures.append(answer.text)

    asking = threading.Thread(target=ask)
    asking.start()
    deployment.process.send_signal(signal.SIGHUP)
    deployment.until("all are new", lambda: "all replicas have started again\n" in deployment.lines)
    is_over.set()
    asking.join()
    assert not failures
    assert count > 3
    deployment.until("two answer", lambda: len(deployment.replicas()) == 2)
    assert not deployment.replicas() & before


def test_it_drains_and_leaves_no_process(deployment: Deployed) -> None:
    """A stream in progress is completed after the signal, new calls are refused, and then nothing is left: neither
    Ray's processes nor the replicas'. The last test of this folder."""
    with official(deployment) as client:
        stream = client.chat.completions.create(messages=QUESTION, stream=True, **ASKED, **LONG | {"max_tokens": 200})
        next(iter(stream))
        deployment.process.send_signal(signal.SIGTERM)
        deployment.until("it drains", lambda: "draining: calls in progress may end\n" in deployment.lines)
        deployment.until("it refuses calls", lambda: code_of(client) == "draining")
        assert end_of(stream) == "length"
    assert deployment.end() == 0
