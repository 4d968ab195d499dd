"""Engines that freeze and die, crowds that do as they please, signals: everybody gets an end, and the books balance."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from chaos import Crowd
from running_server import WAIT_SECONDS, RunningServer, running_server
from serve_kit import CHAT, SIZE, body, chat, wait_for_tokens

pytestmark = pytest.mark.servers


def progress(server: RunningServer) -> bool:
    answer = server.get("/health/progress")
    assert answer.json()["progress"] == (answer.status_code == 200)
    return answer.status_code == 200


def test_a_runner_that_stands_still_is_no_progress_and_an_idle_one_is(
    tiny_server: RunningServer, keys: Any, freeze_file: Path
) -> None:
    """The answer turns false while the process lives and is ready; then it turns true. How fast: `test_progress`."""
    tiny_server.until("it is idle", tiny_server.is_idle)
    assert progress(tiny_server)
    asked = body(max_tokens=400, stream=True, ignore_eos=True)
    with tiny_server.client(keys.alice) as client, client.stream("POST", CHAT, json=asked) as stream:
        lines = stream.iter_lines()
        wait_for_tokens(lines, 2)
        freeze_file.touch()
        try:
            tiny_server.until("progress is false", lambda: not progress(tiny_server))
            assert tiny_server.get("/health/live").status_code == 200
            assert tiny_server.get("/health/ready").status_code == 200
            assert tiny_server.metric("quire_progressing") == 0
            refused = chat(client, max_tokens=5000)
            assert refused.json()["error"]["code"] == "context_length_exceeded"
        finally:
            freeze_file.unlink()
        tiny_server.until("progress is true", lambda: progress(tiny_server))
        assert "[DONE]" in "".join(lines)


@pytest.mark.story
def test_a_stalled_engine_is_logged_explained_and_counted(
    tiny_server: RunningServer, keys: Any, freeze_file: Path
) -> None:
    """The log had no line, the explainer was silent and nothing ran or waited in the metrics, exactly then."""
    tiny_server.until("it is idle", tiny_server.is_idle)
    before = len(tiny_server.told("engine_stalled")), len(tiny_server.told("engine_resumed"))
    asked, named = body(max_tokens=4, n=3, ignore_eos=True), {"x-request-id": "stuck-one"}
    freeze_file.touch()
    try:
        with tiny_server.client(keys.alice) as client, ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.post, CHAT, json=asked, headers=named)
            tiny_server.until("it is logged", lambda: len(tiny_server.told("engine_stalled")) > before[0])
            line = tiny_server.told("engine_stalled")[-1]
            assert (line["level"], line["requests"], len(line["names"])) == ("error", 3, 3)
            seconds = tiny_server.get("/health/progress").json()["step_seconds"]
            assert line["seconds"] >= seconds
            open_requests = ("quire_requests_running", "quire_requests_waiting")
            assert sum(map(tiny_server.metric, open_requests)) == 3
            found = client.get("/v1/requests/stuck-one/explain")
            assert found.status_code == 200
            assert [choice["code"] for choice in found.json()["choices"]] == ["engine_silent"] * 3
            assert all(choice["numbers"]["seconds_since_step"] >= seconds for choice in found.json()["choices"])
            freeze_file.unlink()
            assert answer.result().status_code == 200
    finally:
        freeze_file.unlink(missing_ok=True)
    tiny_server.until("it goes on", lambda: len(tiny_server.told("engine_resumed")) > before[1])


def test_a_crowd_that_does_as_it_pleases_leaves_balanced_books(tiny_server: RunningServer, keys: Any) -> None:
    """Streams, leaves, nonsense and floods for a few seconds. `make soak-serve` is the same for two minutes."""
    deaths = len(tiny_server.told("engine_died"))
    crowd = Crowd(tiny_server.address, "tiny", [keys.alice, keys.bob], clients=40)
    crowd.run(seconds=5, watch=lambda: progress(tiny_server))
    assert crowd.stalls == 0
    assert crowd.lost_progress == 0
    assert crowd.statuses[200] > 0
    assert crowd.statuses[400] > 0
    assert not any(status >= 500 for status in crowd.statuses)
    tiny_server.until("it is audited", tiny_server.is_audited)
    assert tiny_server.metric("quire_books_balance") == 1
    assert not tiny_server.told("internal_error")
    assert len(tiny_server.told("engine_died")) == deaths


@pytest.mark.story
def test_no_request_takes_the_engine_with_it(tiny_server: RunningServer, keys: Any) -> None:
    """A temperature that 32 bits cannot divide by; a schema that can be compiled and then grows too large to follow;
    one that is larger than anyone needs. Whoever asks gets an answer, and nobody else notices."""
    deaths = len(tiny_server.told("engine_died"))
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1200)}}
    huge = {"type": "object", "properties": {f"property{i}": {"type": "string"} for i in range(3000)}}
    with (
        tiny_server.client(keys.alice) as client,
        client.stream("POST", CHAT, json=body(max_tokens=400, stream=True, ignore_eos=True)) as stream,
    ):
        lines = stream.iter_lines()
        wait_for_tokens(lines, 2)
        assert chat(client, temperature=1e-50, top_p=0.5, max_tokens=3).status_code == 200
        for schema, code in ((wide, "refused"), (huge, "invalid_schema")):
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            answer = chat(client, response_format=form, max_tokens=60, temperature=0)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
        assert "[DONE]" in "".join(lines)
    assert len(tiny_server.told("engine_died")) == deaths
    tiny_server.until("it is audited", tiny_server.is_audited)
    assert tiny_server.metric("quire_books_balance") == 1


def test_killing_the_engine_ends_every_request_and_service_comes_back(tiny_server: RunningServer, keys: Any) -> None:
    """A lease that was held is reported as broken in the next answer of its tenant."""
    endings: list[str] = []
    restarts = tiny_server.metric("quire_engine_restarts_total")
    long = [{"role": "user", "content": "the quick brown fox sees the lazy dog " * 12}]
    with tiny_server.client(keys.bob) as bob:
        held = chat(bob, messages=long, max_tokens=4, retain={"seconds": 3600, "session": "lost"}).json()
        assert held["lease"]["granted"], held["lease"]

    def stream() -> None:
        with tiny_server.client(keys.alice) as client:
            try:
                with client.stream("POST", CHAT, json=body(max_tokens=450, stream=True, ignore_eos=True)) as answer:
                    text = "".join(answer.iter_lines()) if answer.status_code == 200 else answer.read().decode()
                ends = ("engine_gone", "engine_starting", "[DONE]")
                endings.append(next((end for end in ends if end in text), "cut"))
            except httpx.HTTPError:
                endings.append("cut")

    threads = [threading.Thread(target=stream, daemon=True) for _ in range(24)]
    for thread in threads:
        thread.start()
    tiny_server.until("they run", lambda: tiny_server.metric("quire_requests_running") >= 6)
    os.kill(tiny_server.engine, signal.SIGKILL)
    tiny_server.until("it is not ready", lambda: not tiny_server.is_ready())
    assert tiny_server.get("/health/live").status_code == 200
    with tiny_server.client(keys.alice) as client:
        away = chat(client)
        assert (away.status_code, away.json()["error"]["code"]) == (503, "engine_starting")
        assert int(away.headers["retry-after"]) > 0
    tiny_server.until("all have an end", lambda: len(endings) == 24)
    assert "cut" not in endings
    assert "engine_gone" in endings
    tiny_server.until("it is ready again", tiny_server.is_ready)
    with tiny_server.client(keys.alice) as client:
        assert chat(client, max_tokens=3).status_code == 200
    with tiny_server.client(keys.bob) as bob:
        (broken,) = chat(bob, messages=long, max_tokens=4, retain={"seconds": 1}).json()["lease"]["broken"]
        assert (broken["name"], broken["ending"]) == ("lost", "engine_restarted")
    assert tiny_server.metric("quire_leases_ended_total", ending="engine_restarted") >= 1
    assert tiny_server.metric("quire_engine_restarts_total") == restarts + 1
    assert tiny_server.told("engine_died")[-1]["exit_code"] == -signal.SIGKILL


def test_a_signal_drains_and_ends(tiny_folder: Path, tmp_path: Path) -> None:
    """The stream under way is finished; new calls are told to go elsewhere; then the process ends with 0. The engine
    stands still until all that is seen, so that nothing depends on who is faster."""
    freeze = tmp_path / "freeze"
    drill = {"QUIRE_DRILL_FREEZE_FILE": str(freeze)}
    size = (*SIZE, "--model-name", "tiny", "--request-seconds", "600", "--log-text")
    with running_server(str(tiny_folder), *size, model="tiny", environment=drill) as server, server.client() as client:
        with client.stream("POST", CHAT, json=body(max_tokens=400, stream=True, ignore_eos=True)) as stream:
            lines = stream.iter_lines()
            wait_for_tokens(lines, 2)
            freeze.touch()
            engine = server.engine
            server.process.send_signal(signal.SIGTERM)
            with server.client() as other:
                server.until("it drains", lambda: other.get("/health/ready").status_code == 503)
                away = chat(other)
                assert (away.status_code, away.json()["error"]["code"]) == (503, "draining")
            freeze.unlink()
            assert "[DONE]" in "".join(lines)
        assert server.process.wait(WAIT_SECONDS) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(engine, 0)
        assert [line["requests"] for line in server.told("draining")] == [1]
        (line,) = [line for line in server.told("request") if line.get("finish") == ["length"]]
        assert "the quick fox" in line["prompts"][0], "as --log-text asks for"
        assert len(line["outputs"][0]) > 0


def test_whoever_waits_beyond_the_draining_time_is_told_so(tiny_folder: Path, tmp_path: Path) -> None:
    """The engine stands still, so the answer under way cannot be finished: it gets an end all the same."""
    freeze = tmp_path / "freeze"
    drill = {"QUIRE_DRILL_FREEZE_FILE": str(freeze)}
    size = (*SIZE, "--drain-seconds", "0.3", "--model-name", "tiny", "--request-seconds", "600")
    with running_server(str(tiny_folder), *size, model="tiny", environment=drill) as server, server.client() as client:
        with client.stream("POST", CHAT, json=body(max_tokens=400, stream=True, ignore_eos=True)) as stream:
            lines = stream.iter_lines()
            wait_for_tokens(lines, 2)
            freeze.touch()
            server.process.send_signal(signal.SIGTERM)
            told = "".join(lines)
            assert "the server stops" in told
            assert '"code":"draining"' in told
        assert server.process.wait(WAIT_SECONDS) == 0
