"""`quire serve` as a process of its own, for tests that talk to it."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx

KIT = Path(__file__).parent
BOOT_SECONDS = 600
"""Of a machine that does much else. A server that cannot start ends by itself, and is noticed at once."""
WAIT_SECONDS = 300
"""For anything that a server does. No test says how fast a server is."""
POLL_SECONDS = 0.02
RUN_SECONDS = 0.005
"""For which an engine that is slowed runs at a time."""
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nothing here speaks TLS: without this, each client would read all certificates of the machine, which takes longer
than its call."""


class RunningServer:
    def __init__(self, process: subprocess.Popen[str], model: str) -> None:
        self.process, self.model = process, model
        self.logs: list[dict[str, Any]] = []
        self.raw_logs: list[str] = []
        self.report: list[str] = []
        self.address = ""
        self.readers = [
            threading.Thread(target=_each_line, args=pair, daemon=True)
            for pair in ((process.stdout, self._read_report), (process.stderr, self._read_log))
        ]
        for reader in self.readers:
            reader.start()

    def _read_report(self, line: str) -> None:
        self.report.append(line)
        if found := re.match(r"serving .* at (http\S+)/v1", line):
            self.address = found.group(1)

    def _read_log(self, line: str) -> None:
        self.raw_logs.append(line)
        if line.startswith("{"):
            self.logs.append(json.loads(line))

    def told(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.logs if line["event"] == event]

    @property
    def engine(self) -> int:
        """The engine's process."""
        return int(self.told("engine_ready")[-1]["process"])

    def kill(self) -> None:
        """Kills the server alone, and waits for its engine, which must not outlive it."""
        engine, end = Path(f"/proc/{self.engine}/stat"), time.monotonic() + WAIT_SECONDS
        self.process.kill()
        self.process.wait()
        while engine.exists() and engine.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < end, "the engine is still there"
            time.sleep(POLL_SECONDS)

    @contextmanager
    def slowed(self) -> Iterator[None]:
        """Here the engine runs for a tenth of the time, so that requests last while they are looked at."""
        engine, end = self.engine, threading.Event()

        def stop_and_go() -> None:
            while not end.wait(RUN_SECONDS):
                os.kill(engine, signal.SIGSTOP)
                end.wait(9 * RUN_SECONDS)
                os.kill(engine, signal.SIGCONT)

        slowing = threading.Thread(target=stop_and_go)
        slowing.start()
        try:
            yield
        finally:
            end.set()
            slowing.join()

    def client(self, key: str | None = None, **more: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.address, headers=headers, timeout=WAIT_SECONDS, verify=PLAIN, **more)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.address + path, timeout=WAIT_SECONDS, verify=PLAIN)

    def is_ready(self) -> bool:
        try:
            return bool(self.address) and self.get("/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's values whose labels are these."""
        return _total(self.get("/metrics").text, name, **labels)

    def until(self, what: str, holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Waits for something to become true; what, if it does not."""
        end = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None, f"the server ended: {''.join(self.raw_logs[-5:])}"
            assert time.monotonic() < end, f"still not so: {what}; {''.join(self.raw_logs[-5:])}"
            time.sleep(POLL_SECONDS)

    def is_audited(self) -> bool:
        """Nothing runs or waits, and the memory was audited after the last step: read at one moment."""
        metrics = self.get("/metrics").text
        busy = _total(metrics, "quire_requests_running") + _total(metrics, "quire_requests_waiting")
        return busy == 0 and _total(metrics, "quire_audited") == 1

    def is_idle(self) -> bool:
        """Nothing runs or waits, and every page that is in use is the cache's: all read at one moment."""
        metrics = self.get("/metrics").text
        busy = _total(metrics, "quire_requests_running") + _total(metrics, "quire_requests_waiting")
        return busy + _total(metrics, "quire_pages", state="used") == 0


def without_options() -> dict[str, str]:
    """This process's environment without variables for tests, which a server would take for options."""
    return {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_") or name == "QUIRE_CACHE"}


def _total(metrics: str, name: str, **labels: str) -> float:
    total = 0.0
    for line in metrics.splitlines():
        found = re.match(rf"{name}(?:{{(.*)}})? (\S+)$", line)
        if found and all(f'{key}="{value}"' in (found.group(1) or "") for key, value in labels.items()):
            total += float(found.group(2))
    return total


def _each_line(stream: IO[str], read: Callable[[str], None]) -> None:
    for line in stream:
        read(line)


@contextmanager
def running_server(
    *arguments: str,
    model: str,
    environment: dict[str, str] | None = None,
    threads: int | None = 1,
    python: str = sys.executable,
    folder: Path | None = None,
) -> Iterator[RunningServer]:
    """`python`: the interpreter that has Quire, where the tests run in one that has not; `folder`: where it starts."""
    command = [python, "-P", "-m", "quire.cli.main", "serve", *arguments, "--port", "0"]
    command += ["--threads", str(threads)] if threads else []
    environment = {**without_options(), **(environment or {})}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder or KIT
    )
    server = RunningServer(process, model)
    try:
        server.until("it is ready", server.is_ready, BOOT_SECONDS)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for reader, stream in zip(server.readers, (process.stdout, process.stderr), strict=True):
            reader.join(10)
            stream.close()
