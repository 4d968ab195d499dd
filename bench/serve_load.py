"""The server compared with the engine alone on the same work: N streams at a time, each one request after another.

    python bench/serve_load.py [--model llama-3.2-1b] [--device cuda] [--streams 8,64,256] [--requests-per-stream 8]
                               [--prompt 512] [--outputs 128] [--clients 8] [--rounds 1] [--json FILE]

The model has a shape of the catalogue and random weights, and a tokenizer of its size; it is written to a temporary
folder. Both sides load that folder with the same options. The engine alone runs in a process of its own: `Engine.step`
is called in a loop, and as soon as a request ends the next one is submitted. The server streams completions to client
processes that read plain sockets. No two prompts are alike. Each size runs once to warm up on the engine's side, and
the server serves one load before those that count. Printed for each side: output tokens a second, time to the first
token, time between tokens; for the server also how busy the busiest client process was (below 100 %, clients are not
the limit). A side starts anew in each round, since both want the whole device.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))

from quire.build.machine import let_threads_sleep

SMALLEST_TOKEN = 3
MOST_PROMPT_TOKEN = 30_000
COMMAND = [sys.executable, str(Path(__file__).resolve())]


@dataclass(slots=True)
class Seen:
    """What one side did at one number of streams."""

    tokens: int = 0
    seconds: float = 0.0
    failed: int = 0
    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    client_busy: float = 0.0

    def line(self) -> dict[str, Any]:
        if not self.firsts:
            raise SystemExit("every call failed: see the lines above")
        first, gap = np.percentile(self.firsts, (50, 99)) * 1e3, np.percentile(self.gaps, (50, 99)) * 1e3
        return {
            "tokens_per_second": round(self.tokens / self.seconds),
            "failed": self.failed,
            "first_ms_p50": round(float(first[0]), 1),
            "first_ms_p99": round(float(first[1]), 1),
            "between_ms_p50": round(float(gap[0]), 2),
            "between_ms_p99": round(float(gap[1]), 2),
            "client_busy": round(self.client_busy, 2),
        }


def prompts(count: int, length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(SMALLEST_TOKEN, MOST_PROMPT_TOKEN, (count, length), dtype=np.int32)


# ── the folder ────────────────────────────────────────────────────────────


def write_folder(name: str, device: str, folder: Path) -> None:
    """A checkpoint of random weights, and a tokenizer of one word per token."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from quire.bench.random_models import config_of, model_of

    config = config_of(name)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 1, 2, None
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model_of(config, torch.device(device), dtype).save_pretrained(folder)
    words = {f"t{token}": token for token in range(config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "t1", "eos_token": "t2"}))


# ── the engine alone ──────────────────────────────────────────────────────


def engine_alone(folder: Path, arguments: argparse.Namespace) -> None:
    """Prints a line of JSON for each number of streams."""
    from quire.build.engine import build_engine, prepare
    from quire.options.run import RunOptions
    from quire.plan.settings import Settings

    settings = Settings(max_length=arguments.max_length, max_requests=max(arguments.streams))
    options = RunOptions(device=arguments.device, compile=arguments.device == "cuda")
    engine = build_engine(prepare(folder, options, settings=settings)).engine
    for place, streams in enumerate(arguments.streams):
        for seed, turns in ((2 * place, 2), (2 * place + 1, arguments.requests_per_stream)):
            seen = drive(engine, prompts(streams * turns, arguments.prompt, seed), streams, arguments.outputs, seed)
        print(json.dumps({"streams": streams, **seen.line()}), flush=True)


def drive(engine: Any, rows: np.ndarray, streams: int, outputs: int, label: int) -> Seen:
    from quire.core.request import Request

    begin, seen = time.perf_counter(), Seen()
    waiting = iter(Request(f"{label}-{place}", prompt, outputs) for place, prompt in enumerate(rows))
    live: list[tuple[Any, float, float | None]] = []
    while True:
        now = time.perf_counter()
        live += [(engine.submit(request), now, None) for request in islice(waiting, streams - len(live))]
        if not live:
            break
        engine.step()
        live = list(_still_open(live, outputs, seen))
    seen.seconds = time.perf_counter() - begin
    return seen


def _still_open(live: list[Any], outputs: int, seen: Seen) -> Iterator[tuple[Any, float, float | None]]:
    now = time.perf_counter()
    for stream, began, first in live:
        count = len(stream.tokens())
        if count and first is None:
            first = now
            seen.firsts.append(now - began)
        if count < outputs:
            yield stream, began, first
        else:
            seen.tokens += count
            seen.gaps.append((now - first) / max(1, outputs - 1))


# ── clients of the server ─────────────────────────────────────────────────


async def call(port: int, prompt: list[int], outputs: int, seen: Seen, model: str = "m", key: str = "") -> None:
    sampling = {"max_tokens": outputs, "temperature": 0, "ignore_eos": True, "stream": True}
    body = json.dumps({"model": model, "prompt": prompt, **sampling}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}"
    head += f"\r\nauthorization: Bearer {key}" if key else ""
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}\r\n\r\n".encode() + body)
    first, last, events, rest = None, begin, 0, b""
    status = await reader.readline()
    while piece := await reader.read(1 << 16):
        found = (rest[-5:] + piece).count(b"data: {")
        if found:
            last = time.perf_counter()
            first = first or last
        events, rest = events + found, (rest + piece)[-64:]
    writer.close()
    if b" 200 " not in status or b"data: [DONE]" not in rest or first is None:
        seen.failed += 1
        print(f"a call failed: {status!r} … {rest!r}", file=sys.stderr, flush=True)
        return
    seen.tokens += outputs
    seen.firsts.append(first - begin)
    seen.gaps.append((last - first) / max(1, outputs - 1))


async def _streams(port: int, rows: np.ndarray, streams: int, outputs: int) -> Seen:
    seen = Seen()

    async def one(place: int) -> None:
        for prompt in rows[place::streams]:
            await call(port, prompt.tolist(), outputs, seen)

    await asyncio.gather(*map(one, range(streams)))
    return seen


def client(port: int, streams: int, turns: int, prompt: int, outputs: int, seed: int) -> None:
    rows = prompts(streams * turns, prompt, seed)
    print("ready", flush=True)
    sys.stdin.readline()
    begin, used = time.perf_counter(), time.process_time()
    seen = asyncio.run(_streams(port, rows, streams, outputs))
    busy = (time.process_time() - used) / (time.perf_counter() - begin)
    own = {"tokens": seen.tokens, "failed": seen.failed, "firsts": seen.firsts, "gaps": seen.gaps, "client_busy": busy}
    print(json.dumps(own), flush=True)


def load(port: int, streams: int, turns: int, arguments: argparse.Namespace, seed: int) -> Seen:
    processes = min(arguments.clients, streams)
    if streams % processes:
        raise SystemExit(f"{streams} streams cannot be divided among {processes} client processes: change --clients")
    own = (port, streams // processes, turns, arguments.prompt, arguments.outputs)
    commands = [[*COMMAND, "--client", *map(str, (*own, 1000 * seed + place))] for place in range(processes)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    clients = [subprocess.Popen(command, **pipes) for command in commands]
    for one in clients:
        assert one.stdout.readline() == "ready\n"
    begin = time.perf_counter()
    for one in clients:
        one.stdin.write("\n")
        one.stdin.flush()
    parts = [json.loads(one.stdout.readline()) for one in clients]
    seen = Seen(seconds=time.perf_counter() - begin, client_busy=max(part["client_busy"] for part in parts))
    for part in parts:
        seen.tokens, seen.failed = seen.tokens + part["tokens"], seen.failed + part["failed"]
        seen.firsts += part["firsts"]
        seen.gaps += part["gaps"]
    return seen


def served(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from running_server import running_server

    size = ("--max-length", str(arguments.max_length), "--max-requests", str(max(arguments.streams)))
    more = ["--device", arguments.device, "--model-name", "m", "--log-level", "warning"]
    more += ["--compile"] * (arguments.device == "cuda") + arguments.server_options.split()
    lines = []
    with running_server(str(folder), *size, *more, model="m", threads=None) as server:
        port = int(server.address.rpartition(":")[2])
        load(port, max(arguments.streams), 1, arguments, 99)
        for place, streams in enumerate(arguments.streams):
            seen = load(port, streams, arguments.requests_per_stream, arguments, place)
            lines.append({"streams": streams, **seen.line()})
    return lines


# ── both ──────────────────────────────────────────────────────────────────


def alone(folder: Path) -> list[dict[str, Any]]:
    command = [*COMMAND, *sys.argv[1:], "--engine", str(folder)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def compare(arguments: argparse.Namespace) -> None:
    rounds: list[dict[str, list[dict[str, Any]]]] = []
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        subprocess.run([*COMMAND, *sys.argv[1:], "--write", scratch], check=True)
        for _ in range(arguments.rounds):
            rounds.append({"engine": alone(folder), "server": served(folder, arguments)})
            report(rounds[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(rounds, indent=1))


def report(sides: dict[str, list[dict[str, Any]]]) -> None:
    names = list(sides["engine"][0])
    print(" | ".join(["side", *names]))
    for engine, server in zip(sides["engine"], sides["server"], strict=True):
        for name, line in (("engine", engine), ("server", server)):
            print(" | ".join([name, *(str(line[one]) for one in names)]))
        print(f"server ÷ engine {server['tokens_per_second'] / engine['tokens_per_second']:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.2-1b", help="a shape of the catalogue (default llama-3.2-1b)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="where it runs (default cuda)")
    parser.add_argument("--streams", default="8,64,256", help="concurrent streams (default 8,64,256)")
    parser.add_argument("--requests-per-stream", type=int, default=8, help="one after another (default 8)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of each prompt (default 512)")
    parser.add_argument("--outputs", type=int, default=128, help="tokens of each answer (default 128)")
    parser.add_argument("--max-length", type=int, default=4096, help="longest request of the plan (default 4096)")
    parser.add_argument("--clients", type=int, default=8, help="client processes (default 8)")
    parser.add_argument("--rounds", type=int, default=1, help="times that both sides start (default 1)")
    parser.add_argument("--server-options", default="", help="more options of quire serve, in one word")
    parser.add_argument("--json", type=Path, help="write all figures there as well")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--engine", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--client", type=int, nargs=6, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.streams = [int(count) for count in arguments.streams.split(",")]
    if arguments.client:
        return client(*arguments.client)
    let_threads_sleep(os.environ)
    if arguments.write:
        return write_folder(arguments.model, arguments.device, arguments.write)
    if arguments.engine:
        return engine_alone(arguments.engine, arguments)
    return compare(arguments)


if __name__ == "__main__":
    main()
