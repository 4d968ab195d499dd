"""Processes that die, signals: every call gets an end, nothing stays held, and what should go on does."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from fronts_kit import FRONTS, client_of_each, standing_still, three_fronts
from running_server import POLL_SECONDS, WAIT_SECONDS, RunningServer
from serve_kit import CHAT, SIZE, body, chat, wait_for_tokens

pytestmark = pytest.mark.servers


def process_of(server: RunningServer, front: int) -> int:
    return int([line["process"] for line in server.told("front_ready") if line["front"] == front][-1])


def lines_of(stack: ExitStack, client: httpx.Client, max_tokens: int) -> Iterator[str]:
    """A stream that has begun."""
    asked = body(max_tokens=max_tokens, stream=True, ignore_eos=True)
    lines = stack.enter_context(client.stream("POST", CHAT, json=asked)).iter_lines()
    wait_for_tokens(lines, 2)
    return lines


def has_ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until_ended(processes: list[int]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not all(map(has_ended, processes)):
        assert time.monotonic() < end, "some are still there"
        time.sleep(POLL_SECONDS)


def test_a_front_that_is_killed_is_replaced_and_leaves_nothing_behind(server: RunningServer, keys: Any) -> None:
    """Its calls are cut off and cancelled in the engine, their places are free again, streams of others go on, and no
    counter goes back."""
    server.until("it is idle", server.is_idle)
    started = len(server.told("front_ready"))
    with (
        client_of_each(server, keys.pair) as fronts,
        client_of_each(server, keys.alice) as others,
        ExitStack() as stack,
    ):
        lost = lines_of(stack, fronts[2], 480)
        going_on = [lines_of(stack, others[number], 300) for number in (1, 3)]
        assert fronts[1].get("/v1/models").headers["x-ratelimit-remaining-requests"] == "1"
        calls = server.metric("quire_http_calls_total")
        os.kill(process_of(server, 2), signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            list(lost)
        for lines in going_on:
            assert "[DONE]" in "".join(lines)
        server.until("it is replaced", lambda: len(server.told("front_ready")) == started + 1)
        assert fronts[1].get("/v1/models").headers["x-ratelimit-remaining-requests"] == "2"
        assert server.metric("quire_http_calls_total") >= calls
    line = server.told("front_died")[-1]
    assert (line["front"], line["exit_code"], line["requests"]) == (2, -signal.SIGKILL, 1)
    server.until("nothing is held", server.is_idle)
    assert server.metric("quire_requests_ended_total", ending="cancelled") >= 1
    with client_of_each(server, keys.pair) as fronts:
        for client in fronts.values():
            assert chat(client, n=2, max_tokens=3).status_code == 200


def test_calls_of_all_fronts_end_with_the_engine_and_service_comes_back(server: RunningServer, keys: Any) -> None:
    """With the errors that they get from one process."""
    restarts, deaths = server.metric("quire_engine_restarts_total"), len(server.told("engine_died"))
    with client_of_each(server, keys.alice) as fronts:
        with ExitStack() as stack:
            streams = [lines_of(stack, client, 480) for client in fronts.values()]
            os.kill(server.engine, signal.SIGKILL)
            for lines in streams:
                assert '"code":"engine_gone"' in "".join(lines)
        server.until("it is logged", lambda: len(server.told("engine_died")) > deaths)
        assert server.told("engine_died")[-1]["requests"] == len(FRONTS)
        for client in fronts.values():
            away = chat(client, max_tokens=3)
            assert (away.status_code, away.json()["error"]["code"]) == (503, "engine_starting")
            assert client.get("/health/ready").status_code == 503
            assert client.get("/health/live").status_code == 200
        server.until("it is ready again", server.is_ready)
        for client in fronts.values():
            server.until("the front knows", lambda client=client: client.get("/health/ready").status_code == 200)
            assert chat(client, max_tokens=3).status_code == 200
            assert client.get("/health/progress").status_code == 200
    assert server.metric("quire_engine_restarts_total") == restarts + 1
    server.until("nothing is held", server.is_idle)


def test_a_crowd_leaves_nothing_behind(server: RunningServer, keys: Any) -> None:
    """Clients of all processes that leave in the middle of their streams."""
    with ExitStack() as stack:
        for _ in range(12):
            lines_of(stack, stack.enter_context(server.client(keys.pair if _ < 2 else keys.alice)), 480)
    server.until("nothing is held", server.is_idle)
    with client_of_each(server, keys.pair) as fronts:
        for client in fronts.values():
            server.until("places are free", lambda client=client: chat(client, n=2, max_tokens=2).status_code == 200)
    assert not server.told("internal_error")


def test_a_signal_lets_the_streams_of_all_fronts_finish(tiny_folder: Path, tmp_path: Path) -> None:
    """New calls are refused by every process meanwhile, and all processes end."""
    freeze = tmp_path / "freeze"
    with (
        three_fronts(tiny_folder, freeze_file=freeze) as server,
        client_of_each(server) as fronts,
        client_of_each(server) as others,
        ExitStack() as stack,
    ):
        processes = [server.engine, *(process_of(server, front) for front in FRONTS)]
        streams = [lines_of(stack, client, 400) for client in fronts.values()]
        with standing_still(freeze):
            server.process.send_signal(signal.SIGTERM)
            for client in others.values():
                server.until("it drains", lambda client=client: client.get("/health/ready").status_code == 503)
                away = chat(client, max_tokens=2)
                assert (away.status_code, away.json()["error"]["code"]) == (503, "draining")
        for lines in streams:
            assert "[DONE]" in "".join(lines)
        assert server.process.wait(WAIT_SECONDS) == 0
        assert [line["requests"] for line in server.told("draining")] == [3]
        assert not server.told("front_died")
        until_ended(processes)


@pytest.fixture(scope="module")
def small_server(tiny_folder: Path) -> Iterator[RunningServer]:
    with three_fronts(tiny_folder, "--connections", "6") as server:
        yield server


def test_connections_have_one_bound_for_all_fronts(small_server: RunningServer) -> None:
    """As many as fit are open, over all processes; one more gets a bare 503. A connection that closes makes room."""
    server = small_server
    host, port = server.address.removeprefix("http://").split(":")

    def answer(connection: socket.socket) -> bytes:
        with contextlib.suppress(ConnectionError):  # it was closed at once
            connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            return connection.recv(1 << 16)[:12]
        return b""

    with ExitStack() as stack:
        opened: list[socket.socket] = []

        def all_fit() -> bool:
            """Connections of those who asked whether it is ready may still be there at first."""
            while opened:
                opened.pop().close()
            opened.extend(stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(6))
            return [answer(one) for one in opened] == [b"HTTP/1.1 200"] * 6

        server.until("six fit", all_fit)
        with socket.create_connection((host, int(port))) as one_more:
            assert one_more.recv(1 << 16).startswith(b"HTTP/1.1 503")
        opened[0].close()

        def fits() -> bool:
            with socket.create_connection((host, int(port))) as next_one:
                return answer(next_one) == b"HTTP/1.1 200"

        server.until("there is room again", fits)
    assert "6 connections already" in server.told("http")[0]["message"]


def test_a_hub_that_is_killed_takes_fronts_and_engine_with_it(small_server: RunningServer) -> None:
    """Nothing that it started outlives it. The last test of this server."""
    server = small_server
    server.until("connections of the test before are closed", server.is_ready)
    with ExitStack() as stack, server.client() as client:
        lines = lines_of(stack, client, 480)
        processes = [server.engine, *(process_of(server, front) for front in FRONTS)]
        server.kill()
        until_ended(processes)
        with pytest.raises(httpx.TransportError):
            list(lines)


def test_a_front_that_cannot_start_ends_the_server_with_its_error(tiny_folder: Path, tmp_path: Path) -> None:
    """As one process does: with the message and the exit code of what is wrong."""
    broken = tmp_path / "broken"
    shutil.copytree(tiny_folder, broken)
    (broken / "tokenizer.json").write_text('{"version": ')
    command = [sys.executable, "-m", "quire.cli.main", "serve", str(broken), *SIZE, "--port", "0"]
    ends = [
        subprocess.run([*command, "--http-processes", count], capture_output=True, text=True, timeout=WAIT_SECONDS)
        for count in ("1", "2")
    ]
    assert (ends[0].returncode, ends[1].returncode) == (2, 2)
    assert ends[0].stderr.splitlines()[-1] == ends[1].stderr.splitlines()[-1]
    assert f"{broken / 'tokenizer.json'} cannot be read as a tokenizer" in ends[0].stderr.splitlines()[-1]
    assert "Traceback" not in ends[0].stderr + ends[1].stderr


@pytest.mark.soak
def test_a_front_that_hangs_is_replaced(tiny_folder: Path) -> None:
    """After half a minute without a sign. Others answer meanwhile."""
    with three_fronts(tiny_folder) as server, client_of_each(server) as fronts:
        process = process_of(server, 3)
        os.kill(process, signal.SIGSTOP)
        assert chat(fronts[1], max_tokens=3).status_code == 200
        server.until("it is noticed", lambda: bool(server.told("front_stuck")))
        assert server.told("front_stuck")[0]["front"] == 3
        server.until("it is replaced", lambda: process_of(server, 3) != process)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
