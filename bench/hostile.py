"""Clients that try to stall the server or to fill its memory, and what others notice of it.

    python bench/hostile.py [--seconds 30] [--attackers 4] [--connections 2048]

A server of a tiny model runs with --keys. First, attackers send bodies of one-byte chunks as fast as they can and
connect again when they are refused, while /health/live is asked one call after another: printed are its times, and how
much the attackers sent. Then clients with a key send the bodies that take the longest to read, 3,500 messages of 30
parts and 2 million token ids, one after another: printed are the times again. Last, as many connections as the server
takes announce a body of 4 MiB each, half of them on an open path, and send it but for one byte: printed is the memory
of the HTTP process before, during and after.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import resource
import socket
import sys
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))

import httpx

from quire.serve.keys import Tenant, add_key
from running_server import RunningServer, running_server
from serve_kit import SIZE
from tiny_folder import make_folder

CHUNKS = b"1\r\na\r\n" * 10_000
BODY_BYTES = 4 << 20
ROUNDS = 64
"""Pieces in which a large body is sent, to all connections in turn."""


def attack(port: int, seconds: float, sent: Synchronized[int], connections: Synchronized[int]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            with connections.get_lock():
                connections.value += 1
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
            while time.monotonic() < end:
                connection.sendall(CHUNKS)
                with sent.get_lock():
                    sent.value += len(CHUNKS)


PART = {"type": "text", "text": "a"}
LARGE = {
    "/v1/chat/completions": {"model": "model", "messages": [{"role": "user", "content": [PART] * 30}] * 3500},
    "/v1/completions": {"model": "model", "prompt": [1] * 2_000_000},
}
"""By path: a body below the limit of size that is refused only when it has been read."""


def send_large(address: str, key: str, path: str, seconds: float, sent: Synchronized[int]) -> None:
    body, end = json.dumps(LARGE[path], separators=(",", ":")).encode(), time.monotonic() + seconds
    assert len(body) < BODY_BYTES
    with httpx.Client(base_url=address, headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
        while time.monotonic() < end:
            assert client.post(path, content=body).status_code == 400
            with sent.get_lock():
                sent.value += len(body)


def hold(server: RunningServer, key: str, seconds: float) -> None:
    for path in LARGE:
        sent = multiprocessing.Value("q", 0)
        sender = multiprocessing.Process(target=send_large, args=(server.address, key, path, seconds, sent))
        sender.start()
        times = times_of_health(server, seconds)
        sender.join()
        print(f"large bodies for {path}: {health(times)}; {sent.value / 1e6:,.0f} MB sent")


def health(times: list[float]) -> str:
    p50, p99 = (times[int(len(times) * part)] * 1000 for part in (0.5, 0.99))
    most = times[-1] * 1000
    return f"/health/live {len(times):,} calls, p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {most:.1f} ms"


def times_of_health(server: RunningServer, seconds: float) -> list[float]:
    times, end = [], time.monotonic() + seconds
    with server.client() as client:
        while time.monotonic() < end:
            begin = time.perf_counter()
            assert client.get("/health/live").status_code == 200
            times.append(time.perf_counter() - begin)
            time.sleep(0.005)
    return sorted(times)


def stall(server: RunningServer, seconds: float, attackers: int) -> None:
    port = int(server.address.rpartition(":")[2])
    for count in (0, attackers):
        sent, connections = multiprocessing.Value("q", 0), multiprocessing.Value("q", 0)
        arguments = (port, seconds, sent, connections)
        running = [multiprocessing.Process(target=attack, args=arguments) for _ in range(count)]
        for one in running:
            one.start()
        times = times_of_health(server, seconds if count else min(5.0, seconds))
        for one in running:
            one.join()
        sizes = f"{connections.value:,} connections, {sent.value / 1e6:,.0f} MB sent"
        print(f"{count} attackers: {health(times)}; {sizes}")


def resident_mib(process: int) -> float:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


def fill(server: RunningServer, count: int) -> None:
    port = int(server.address.rpartition(":")[2])
    before, most = resident_mib(server.process.pid), 0.0
    paths = ("/health", "/v1/chat/completions")
    held: list[socket.socket] = []
    for number in range(count):
        with contextlib.suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", port), timeout=5)
            head = f"POST {paths[number % 2]} HTTP/1.1\r\nhost: a\r\ncontent-length: {BODY_BYTES}\r\n\r\n"
            connection.sendall(head.encode())
            connection.setblocking(False)
            held.append(connection)
    for _ in range(ROUNDS):
        for connection in held:
            with contextlib.suppress(OSError):
                connection.send(bytes(BODY_BYTES // ROUNDS - 1))
        most = max(most, resident_mib(server.process.pid))
    for connection in held:
        connection.close()
    server.until("it answers", server.is_ready)
    time.sleep(2)
    after = resident_mib(server.process.pid)
    print(f"{len(held):,} connections: {before:.0f} MiB before, {most:.0f} MiB at most, {after:.0f} MiB after")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30, help="how long the attackers try (default 30)")
    parser.add_argument("--attackers", type=int, default=4, help="attacking processes (default 4)")
    parser.add_argument("--connections", type=int, default=2048, help="connections with large bodies (default 2048)")
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with TemporaryDirectory() as place:
        folder, keys = Path(place) / "model", Path(place) / "keys.json"
        folder.mkdir()
        key = add_key(keys, Tenant("alice", "alice"))
        options = (str(make_folder(folder)), *SIZE, "--keys", str(keys), "--open-metrics")
        with running_server(*options, model="model") as server:
            stall(server, arguments.seconds, arguments.attackers)
            hold(server, key, min(10.0, arguments.seconds))
            fill(server, arguments.connections)


if __name__ == "__main__":
    main()
