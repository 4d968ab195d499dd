"""What the inspector costs: the engine and the server while somebody watches, and the page for each frame.

    python bench/inspector.py             views and differences of 10,000 sheets and 1,000 requests; frames in Chromium
    python bench/inspector.py --server    a server of the default model, with and without a reader in turn

A frame is measured as the main thread's time in Chromium: script, style, layout and paint. What it takes without a
frame is subtracted. The reader of the second part is on the same machine, so what it takes itself counts against it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browsers"))

from browser import driven
from quire.core.request import Request
from quire.core.step import Step, StepResult
from quire.engine.engine import Engine
from quire.fetch.default import fetch_default
from quire.inspect.difference import difference
from quire.inspect.document import ServerView, Subject, document
from quire.inspect.look import look
from quire.inspect.page import FILES, HEADERS, PAGE
from quire.models.read import read_model
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from running_server import running_server

SHEETS, REQUESTS, ROWS = 10_000, 1_000, 900
STEPS_A_FRAME = 12
PAUSE_SECONDS = 0.4
"""Between two frames: longer than a frame takes."""
Json = dict[str, Any]


class SameToken:
    """A runner that computes nothing."""

    def __init__(self) -> None:
        self._flying: list[Step] = []

    def launch(self, step: Step) -> None:
        self._flying.append(step)

    def collect(self) -> StepResult:
        step = self._flying.pop(0)
        return StepResult(step.number, np.full(int(np.count_nonzero(step.samples)), 7, dtype=np.int64))


def busy_engine() -> Engine:
    """Requests of many lengths, most of them generating, some waiting."""
    settings = Settings(max_requests=ROWS, batch_tokens=8192, max_length=32_768)
    engine = Engine(make_plan(read_model("gemma-3-27b"), settings, Budget(sheets=(SHEETS,))), SameToken())
    random = np.random.default_rng(0)
    for number in range(REQUESTS):
        prompt = random.integers(0, 30_000, int(random.integers(100, 700)), dtype=np.int32)
        engine.submit(Request(f"request-{number}", prompt, 4000, tenant=f"tenant-{number % 9}"))
    while not engine.scheduler.rows.known.any() or engine.scheduler.steps < 260:
        engine.step()
    return engine


def milliseconds(work: Callable[[], Any], times: int = 30) -> float:
    """Of processor time: the median."""
    found = []
    for _ in range(times):
        begin = time.thread_time()
        work()
        found.append(1e3 * (time.thread_time() - begin))
    return statistics.median(found)


def documents(engine: Engine, frames: int) -> list[Json]:
    subject, found = Subject.of(engine.scheduler.plan), []
    for _ in range(frames):
        for _ in range(STEPS_A_FRAME):
            engine.step()
        running, waiting = len(engine.scheduler.running), {"memory": len(engine.scheduler.queue)}
        server = ServerView("server", "ready", steps=engine.scheduler.steps, running=running, waiting=waiting)
        found.append(document(subject, server, look(engine)))
    return found


# ── the page ─────────────────────────────────────────────────────────────


class Feed(ThreadingHTTPServer):
    """The page, and a stream that sends its next event when it is told to."""

    daemon_threads = True

    def __init__(self, events: list[Json]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events, self.sent = events, threading.Semaphore(0)


class _Handler(BaseHTTPRequestHandler):
    server: Feed

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/v1/inspect/stream":
            self._stream()
            return
        content, kind = FILES.get(path.removeprefix("/inspect").lstrip("/") or PAGE, (b"", "text/plain"))
        if path == "/v1/inspect":
            content, kind = json.dumps(self.server.events[0]["set"]).encode(), "application/json"
        self._head(kind, {"content-length": str(len(content)), **HEADERS})
        self.wfile.write(content)

    def _head(self, kind: str, more: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {"content-type": kind, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self) -> None:
        self._head("text/event-stream", {})
        for event in self.server.events:
            self.server.sent.acquire()
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()

    def log_message(self, *_: object) -> None: ...


def frame_milliseconds(events: list[Json], view: str) -> tuple[float, float]:
    """Of the main thread, and of the page's own script: medians over all events but the first two."""
    with tempfile.TemporaryDirectory() as profile, driven("chrome", Path(profile)) as browser, Feed(events) as feed:
        threading.Thread(target=feed.serve_forever, daemon=True).start()
        browser.open(f"http://127.0.0.1:{feed.server_port}/inspect#{view}")
        feed.sent.release()
        browser.until("it is drawn", lambda: "running" in browser.text("#status"))
        idle, frames, scripts = [], [], []
        for _ in events[1:]:
            idle.append(_main_thread(browser, lambda: None))
            frames.append(_main_thread(browser, feed.sent.release))
            scripts.append(browser.evaluate("performance.getEntriesByName('quire frame').at(-1).duration"))
        feed.shutdown()
    return 1e3 * (statistics.median(frames[1:]) - statistics.median(idle[1:])), statistics.median(scripts[1:])


def _main_thread(browser: Any, act: Callable[[], None]) -> float:
    """Seconds of tasks until the pause after it is over."""
    before = browser.do("metrics")["TaskDuration"]
    act()
    time.sleep(PAUSE_SECONDS)
    return float(browser.do("metrics")["TaskDuration"] - before)


def show_page(frames: int) -> None:
    engine = busy_engine()
    state = f"{len(engine.scheduler.running)} running, {len(engine.scheduler.queue)} waiting"
    subject = Subject.of(engine.scheduler.plan)
    view, server = look(engine), ServerView("server", "ready")
    print(f"{SHEETS:,} sheets, {state}, {engine.scheduler.memories[0].pool.free_sheets:,} sheets free; medians")
    print(f"a view, in the engine's process     {milliseconds(lambda: look(engine)):7.2f} ms")
    print(f"its document, in the HTTP process   {milliseconds(lambda: document(subject, server, view)):7.2f} ms")
    found = documents(engine, frames)
    pairs = list(pairwise(found))
    print(f"the difference of two documents     {milliseconds(lambda: difference(*pairs[0])):7.2f} ms")
    events = [{"set": found[0]}, *(difference(*pair) for pair in pairs)]
    sizes = [len(json.dumps(event)) for event in events]
    print(f"the whole {sizes[0] / 1e3:,.0f} kB, a difference {statistics.median(sizes[1:]) / 1e3:,.1f} kB")
    for shown in ("requests", "pool"):
        total, script = frame_milliseconds([event for event in events if event], shown)
        print(f"a frame of #{shown:<9} main thread {total:6.2f} ms, of which drawing {script:6.2f} ms")


# ── the server ───────────────────────────────────────────────────────────


@contextmanager
def reading(address: str) -> Iterator[None]:
    """A page of another process: reads the stream and drops it."""
    over = threading.Event()

    def read() -> None:
        with httpx.Client(timeout=60) as client, client.stream("GET", f"{address}/v1/inspect/stream") as stream:
            for _ in stream.iter_raw():
                if over.is_set():
                    return

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def chats(address: str, over: threading.Event, seed: int) -> None:
    """One conversation after another, until it is over."""
    random = np.random.default_rng(seed)
    with httpx.Client(base_url=address, timeout=300) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        while not over.is_set():
            words = " ".join(f"word{number}" for number in random.integers(0, 99, int(random.integers(10, 60))))
            message = {"role": "user", "content": words}
            client.post("/v1/chat/completions", json={"model": model, "messages": [message], "max_tokens": 64})


def show_server(rounds: int, seconds: float, clients: int) -> None:
    size = ("--pool", "256MiB", "--max-length", "1024", "--max-requests", "16", "--batch-tokens", "512")
    over, found = threading.Event(), {False: [], True: []}  # type: ignore[var-annotated]
    with running_server(str(fetch_default()), *size, model="default") as server:
        threads = [threading.Thread(target=chats, args=(server.address, over, seed)) for seed in range(clients)]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        for turn in range(2 * rounds):
            is_read = turn % 2 == 1
            with reading(server.address) if is_read else tempfile.TemporaryFile():
                found[is_read].append(_measure(server, seconds))
        over.set()
        for thread in threads:
            thread.join()
    for is_read, name in ((False, "nobody watches"), (True, "one reader")):
        speed, cost = (statistics.median(column) for column in zip(*found[is_read], strict=True))
        print(f"{name:<16} {speed:9.1f} tokens/s, {1e3 * cost:8.4f} ms of the engine's processor time a token")
    pairs = zip(found[False], found[True], strict=True)
    ratios = [(after[0] / before[0], after[1] / before[1]) for before, after in pairs]
    speeds, costs = ([f"{one:.3f}" for one in sorted(column)] for column in zip(*ratios, strict=True))
    print(f"throughput with ÷ without, by round: {', '.join(speeds)}")
    print(f"processor time a token with ÷ without: {', '.join(costs)}")


def _measure(server: Any, seconds: float) -> tuple[float, float]:
    """Tokens a second, and the engine's processor seconds for each."""
    begin, tokens, used = (
        time.monotonic(),
        server.metric("quire_computed_tokens_total"),
        processor_seconds(server.engine),
    )
    time.sleep(seconds)
    tokens = server.metric("quire_computed_tokens_total") - tokens
    return tokens / (time.monotonic() - begin), (processor_seconds(server.engine) - used) / tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="store_true", help="measure a server with and without a reader")
    parser.add_argument("--frames", type=int, default=40, help="frames of each view (default 40)")
    parser.add_argument("--rounds", type=int, default=6, help="pairs of measurements of the server (default 6)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement (default 15)")
    parser.add_argument("--clients", type=int, default=8, help="conversations at once (default 8)")
    options = parser.parse_args()
    if options.server:
        show_server(options.rounds, options.seconds, options.clients)
    else:
        show_page(options.frames)


if __name__ == "__main__":
    main()
