"""What the HTTP process costs for each streamed token, with an engine that needs no time of its own.

    python bench/http_cost.py [--streams 64,256] [--outputs 128] [--turns 4] [--step-ms 20] [--clients 2]
                               [--http-processes 1]

A server of the default model's folder runs with `bench/engine_double.py` in the engine's place, which generates a token
for every open request in each step: at the pace of an engine (--step-ms), so that each token is an event of its own, or
as fast as the server takes them (0), when several tokens of a stream wait and become one event. Client processes read
chat streams from plain sockets, each stream one call after another. Printed: processor time of the HTTP process per
token, and how much of it is the system's (sockets, threads), tokens a second, how busy the HTTP process and the client
processes were (below 100 %, the clients are not the limit), and what clients see: the time from a call to its first
event and between two arrivals, median and 99th percentile. A lone stream: --streams 1 --clients 1. With several HTTP
processes: all of them together, and of that the hub.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

from engine_double import STEP_SECONDS, TOKENS
from quire.build.plan import plan_checkpoint
from quire.fetch.default import fetch_default
from quire.options.run import RunOptions
from quire.plan.settings import Budget, Settings
from quire.serve import client as engine_client
from quire.serve.server import PlannedModel, listen, run
from quire.serve.settings import ServeSettings
from quire.text.tokenizer import Tokenizer

HERE = Path(__file__).parent
TEXT = (HERE.parent / "docs" / "memory.md").read_text()
MODEL = "smollm2-135m-instruct"


# ── the server ────────────────────────────────────────────────────────────


def serve(most_requests: int, processes: int) -> None:
    """In a process of its own: its processor time is what is measured."""
    folder = fetch_default()
    settings = Settings(max_length=2048, max_requests=most_requests, batch_tokens=2048)
    plan = plan_checkpoint(folder, settings, Budget(pool_bytes=8 << 30), RunOptions(device="cpu"))
    with patch.object(engine_client, "engine_process", _double), listen("127.0.0.1", 0) as listener:
        print(listener.getsockname()[1], flush=True)
        options = ServeSettings(log_level="warning", http_processes=processes)
        run(listener, PlannedModel(folder, plan, "a double"), RunOptions(device="cpu"), options, announce=_in_silence)


def _double(descriptor: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(HERE / "engine_double.py"), str(descriptor)]
    return subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL, stdout=sys.stderr)


def _in_silence(_text: str) -> None:
    pass


# ── clients ───────────────────────────────────────────────────────────────


def call_of(outputs: int) -> bytes:
    body = {"model": MODEL, "stream": True, "max_tokens": outputs, "ignore_eos": True}
    text = json.dumps({**body, "messages": [{"role": "user", "content": "How long is a piece of string?"}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(text)}\r\n\r\n"
    return (head + text).encode()


async def stream(port: int, call: bytes, turns: int, firsts: list[float], gaps: list[float]) -> int:
    """Events of these calls, one after another on one connection; adds the seconds to each first event and between
    arrivals."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    events = 0
    for _ in range(turns):
        writer.write(call)
        rest, at, times = b"", time.perf_counter(), firsts
        while b"data: [DONE]" not in rest:
            piece = await reader.read(1 << 16)
            assert piece, f"the server closed the connection: {rest[-500:]!r}"
            found = (rest[-5:] + piece).count(b"data: ")
            if found:
                now = time.perf_counter()
                times.append(now - at)
                at, times = now, gaps
            events += found
            rest = (rest + piece)[-64:]
        while not rest.endswith(b"0\r\n\r\n"):
            rest = (rest + await reader.read(1 << 16))[-64:]
    writer.close()
    return events


async def streams(
    port: int, count: int, outputs: int, turns: int, times: tuple[list[float], list[float]] | None = None
) -> int:
    times = times or ([], [])
    return sum(await asyncio.gather(*(stream(port, call_of(outputs), turns, *times) for _ in range(count))))


def client(port: int, count: int, outputs: int, turns: int) -> None:
    asyncio.run(streams(port, 1, outputs, 1))
    print("ready", flush=True)
    sys.stdin.readline()
    firsts: list[float] = []
    gaps: list[float] = []
    begin, used = time.perf_counter(), time.process_time()
    events = asyncio.run(streams(port, count, outputs, turns, (firsts, gaps)))
    seconds, busy = time.perf_counter() - begin, time.process_time() - used
    told = {"events": events, "seconds": seconds, "busy": busy / seconds, "firsts": firsts, "gaps": gaps}
    print(json.dumps(told), flush=True)


# ── the measurement ───────────────────────────────────────────────────────


def http_processes(server: int) -> list[int]:
    """The server itself, which is the hub if there are several, and its fronts."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    fronts = [int(one) for one in children if b"quire.serve.fronts.front" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return [server, *fronts]


def processor_seconds(process: int) -> tuple[float, float]:
    """Of the program, and of the system on its behalf."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    own, system = (int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:13])
    return own, system


def measure(arguments: argparse.Namespace, count: int) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__))]
    tokens = json.dumps(Tokenizer.load(fetch_default()).encode(TEXT)[:4096])
    environment = {**os.environ, TOKENS: tokens, STEP_SECONDS: str(arguments.step_ms / 1000)}
    server = subprocess.Popen(
        [*command, "--serve", str(count), str(arguments.http_processes)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        _wait_until_ready(port)
        sizes = (str(port), str(count // arguments.clients), str(arguments.outputs), str(arguments.turns))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        clients = [subprocess.Popen([*command, "--client", *sizes], **pipes) for _ in range(arguments.clients)]
        for one in clients:
            assert one.stdout.readline() == "ready\n"
        processes = http_processes(server.pid)
        before = [processor_seconds(one) for one in processes]
        for one in clients:
            one.stdin.write("\n")
            one.stdin.flush()
        told = [json.loads(one.stdout.readline()) for one in clients]
        after = [processor_seconds(one) for one in processes]
        used = [(now[0] - then[0], now[1] - then[1]) for now, then in zip(after, before, strict=True)]
        own, system = map(sum, zip(*used, strict=True))
    finally:
        server.terminate()
        server.wait()
    tokens = count // arguments.clients * arguments.clients * arguments.outputs * arguments.turns
    seconds = max(one["seconds"] for one in told)
    return {
        "streams": count,
        "tokens": tokens,
        "microseconds_per_token": (own + system) / tokens * 1e6,
        "of_the_hub": sum(used[0]) / tokens * 1e6 if len(used) > 1 else 0.0,
        "of_the_system": system / tokens * 1e6,
        "tokens_per_second": tokens / seconds,
        "server_busy": (own + system) / seconds,
        "client_busy": max(one["busy"] for one in told),
        "first_ms": _middle_and_tail([seconds for one in told for seconds in one["firsts"]]),
        "between_ms": _middle_and_tail([seconds for one in told for seconds in one["gaps"]]),
    }


def _middle_and_tail(seconds: list[float]) -> tuple[float, float]:
    median, tail = np.percentile(seconds, (50, 99)) * 1000
    return float(median), float(tail)


def _wait_until_ready(port: int) -> None:
    for _ in range(600):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            if b" 200 " in connection.recv(1 << 16)[:20]:
                return
        time.sleep(0.1)
    raise SystemExit("the server was not ready after a minute")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="64,256", help="concurrent streams, one run for each (default 64,256)")
    parser.add_argument("--outputs", type=int, default=128, help="tokens of an answer (default 128)")
    parser.add_argument("--turns", type=int, default=4, help="calls of each stream, one after another (default 4)")
    parser.add_argument("--step-ms", type=float, default=20, help="time of a step; 0: as fast as possible (default 20)")
    parser.add_argument("--clients", type=int, default=2, help="client processes (default 2)")
    parser.add_argument("--http-processes", type=int, default=1, help="HTTP processes of the server (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--serve", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--client", type=int, nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(*arguments.serve)
    if arguments.client:
        return client(*arguments.client)
    found = [measure(arguments, int(count)) for count in arguments.streams.split(",")]
    if arguments.json:
        return print(json.dumps(found, indent=1))
    print(
        f"{'streams':>8}{'tokens':>10}{'µs/token':>10}{'(system)':>10}{'(hub)':>7}{'tokens/s':>10}{'busy':>7}"
        f"{'clients busy':>14}{'first ms p50, p99':>20}{'between ms p50, p99':>21}"
    )
    for one in found:
        cost = f"{one['microseconds_per_token']:>10.1f}{one['of_the_system']:>10.1f}{one['of_the_hub']:>7.1f}"
        busy = f"{one['tokens_per_second']:>10,.0f}{one['server_busy']:>7.0%}{one['client_busy']:>14.0%}"
        seen = "".join(f"{middle:>12.1f}{tail:>8.1f}" for middle, tail in (one["first_ms"], one["between_ms"]))
        print(f"{one['streams']:>8}{one['tokens']:>10,}{cost}{busy}{seen}")
    return None


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    main()
