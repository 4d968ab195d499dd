"""Tokens per second of the server beside the engine alone, the default model, the same requests, one run.

    python bench/serve.py [--clients 16] [--turns 2] [--prompt 64] [--outputs 64] [--rounds 2] [--threads N]
    python bench/serve.py --soak 120 [--clients 200]

The engine alone gets all requests at once and is drained; the server gets them from so many clients, each of which
sends the next one when the one before has streamed to its end. Rounds are interleaved, the best of each counts. Then
requests that can never fit are refused while others stream, and one prompt is asked by keys of different scopes. With
--soak a crowd of clients streams, leaves, floods and sends nonsense to a tiny model instead, in a pool too small for
all of them, and what is left of it is counted: stalls, progress, books, memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))

from chaos import Crowd
from quire.build.engine import build_engine, prepare
from quire.core.request import Request
from quire.engine.engine import Engine
from quire.fetch.default import fetch_default
from quire.options.run import RunOptions
from quire.plan.settings import Budget, Settings
from quire.serve.keys import Tenant, add_key
from running_server import RunningServer, running_server
from tiny_folder import make_folder

POOL_BYTES = 1 << 30
MODEL = "smollm2-135m-instruct"


KEYS: dict[str, str] = {}
"""By name; made when the server starts."""
SCOPES = {"nobody has asked it": "one", "another scope has": "another", "the same scope has": "one's other"}
"""The same prompt, and the key that asks it, in this order."""
TEXT = "How long is a piece of string? "
TOO_LONG = {
    "an answer of 100,000 tokens": {"prompt": TEXT * 40, "max_tokens": 100_000},
    "a prompt of 2,561 tokens": {"prompt": TEXT * 320, "max_tokens": 1},
}


def keys_in(folder: Path) -> tuple[str, str, str]:
    """Two keys of one scope, and one of another: as an option of the server."""
    file = folder / "keys.json"
    for name, scope in (("one", "one"), ("one's other", "one"), ("another", "another")):
        KEYS[name] = add_key(file, Tenant(name, scope))
    return "--keys", str(file), "--open-metrics"


def client_of(address: str, key: str, connections: int) -> httpx.AsyncClient:
    limits, headers = httpx.Limits(max_connections=connections), {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=address, timeout=600, limits=limits, headers=headers)


def prompts_of(count: int, length: int, seed: int) -> list[list[int]]:
    return np.random.default_rng(seed).integers(100, 40_000, (count, length)).tolist()


def alone(engine: Engine, prompts: list[list[int]], outputs: int, name: str) -> float:
    begin = time.perf_counter()
    for place, prompt in enumerate(prompts):
        engine.submit(Request(f"{name}-{place}", np.array(prompt, dtype=np.int32), outputs))
    engine.drain()
    return time.perf_counter() - begin


def served(address: str, prompts: list[list[int]], outputs: int, clients: int) -> float:
    begin = time.perf_counter()
    tokens = asyncio.run(_clients(address, prompts, outputs, clients))
    seconds = time.perf_counter() - begin
    assert tokens == len(prompts) * outputs, f"{tokens} tokens came, {len(prompts) * outputs} were asked for"
    return seconds


async def _clients(address: str, prompts: list[list[int]], outputs: int, clients: int) -> int:
    async with client_of(address, KEYS["one"], clients) as client:
        return sum(await asyncio.gather(*(_one(client, prompts[i::clients], outputs) for i in range(clients))))


async def _one(client: httpx.AsyncClient, prompts: list[list[int]], outputs: int) -> int:
    tokens = 0
    for prompt in prompts:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": outputs, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        last = b""
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for piece in answer.aiter_bytes():
                last = piece if b'"usage":{' in piece else last
        event = next(line for line in last.split(b"\n") if b'"usage":{' in line)
        tokens += int(json.loads(event.removeprefix(b"data: "))["usage"]["completion_tokens"])
    return tokens


def compare(options: argparse.Namespace) -> None:
    folder = fetch_default()
    settings = Settings(max_requests=options.clients, batch_tokens=2048, max_length=2048)
    run_options = RunOptions(device="cpu", threads=options.threads)
    engine = build_engine(prepare(folder, run_options, settings=settings, budget=Budget(pool_bytes=POOL_BYTES))).engine
    size = ("--pool", str(POOL_BYTES), "--max-requests", str(options.clients), "--batch-tokens", "2048")
    threads = ("--threads", str(options.threads)) if options.threads else ()
    best = {"engine": float("inf"), "server": float("inf")}
    with (
        TemporaryDirectory() as scratch,
        running_server(
            str(folder), *size, "--max-length", "2048", *threads, *keys_in(Path(scratch)), model=MODEL, threads=None
        ) as server,
    ):
        for turn in range(options.rounds + 1):
            prompts = prompts_of(options.clients * options.turns, options.prompt, turn)
            seconds = {
                "engine": alone(engine, prompts, options.outputs, f"round{turn}"),
                "server": served(server.address, prompts, options.outputs, options.clients),
            }
            if turn:  # the first round warms both up
                best = {name: min(best[name], seconds[name]) for name in best}
            print(".", end="", file=sys.stderr, flush=True)
        refused, still = asyncio.run(refusals(server.address, options.streams))
        firsts = asyncio.run(first_tokens(server.address, options.scope_prompt, options.scope_turns))
    tokens = options.clients * options.turns * options.outputs
    print(f"\n{options.clients} clients, {tokens:,} tokens of output, prompts of {options.prompt} tokens")
    for name, took in best.items():
        print(f"  {name:<7}{tokens / took:8.1f} tokens/s")
    print(f"  server ÷ engine {best['engine'] / best['server']:.3f}")
    print(f"  what can never fit, while {options.streams} others stream ({still} still did at the end), is refused in:")
    for name, took in refused.items():
        median, worst = np.median(took) * 1e3, max(took) * 1e3
        print(f"    {name:<32}{median:.1f} ms (median of {len(took)}), {worst:.1f} ms at worst")
    print(f"  time to the first token of {options.scope_prompt} tokens, median of {options.scope_turns} turns:")
    for name, seen in firsts.items():
        seconds, hits = zip(*seen, strict=True)
        spread = f"{np.median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
        print(f"    {name:<32}{spread}, {np.median(hits):.0f} tokens reused")


async def refusals(address: str, streams: int, times: int = 10) -> tuple[dict[str, list[float]], int]:
    """Seconds until a request for more tokens than the plan admits has its answer, while others stream. And how many of
    these still did at the end."""
    seconds: dict[str, list[float]] = {name: [] for name in TOO_LONG}
    async with client_of(address, KEYS["one"], streams + 1) as client:
        others = [asyncio.ensure_future(_one(client, [prompt], 24)) for prompt in prompts_of(streams, 16, 99)]
        await asyncio.sleep(1)
        for name in [*TOO_LONG] * times:
            begin = time.perf_counter()
            answer = await client.post("/v1/completions", json={"model": MODEL, **TOO_LONG[name]})
            seconds[name].append(time.perf_counter() - begin)
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            await asyncio.sleep(0.05)
        still = sum(not other.done() for other in others)
        await asyncio.gather(*others)
    return seconds, still


async def first_tokens(address: str, length: int, turns: int) -> dict[str, list[tuple[float, int]]]:
    """Seconds to the first token of the same prompt, and tokens reused, by who has asked it before. Keys take turns:
    whatever else the machine does meets all of them."""
    seen: dict[str, list[tuple[float, int]]] = {name: [] for name in SCOPES}
    for prompt in prompts_of(turns + 1, length, 7):
        for name, key in SCOPES.items():
            async with client_of(address, KEYS[key], 1) as client:
                seen[name].append(await _first_token(client, prompt))
    return {name: timed[1:] for name, timed in seen.items()}  # the first turn opens sheets and warms up


async def _first_token(client: httpx.AsyncClient, prompt: list[int]) -> tuple[float, int]:
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begin, seconds, usage = time.perf_counter(), 0.0, {}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                seconds = seconds or time.perf_counter() - begin
                usage = json.loads(line.removeprefix("data: "))["usage"] or usage
    return seconds, int(usage["prompt_tokens_details"]["cached_tokens"])


def soak(options: argparse.Namespace) -> None:
    size = ("--pool", "2MiB", "--max-length", "512", "--max-requests", "32", "--batch-tokens", "256", "--queue", "512")
    more = ("--model-name", "tiny", "--step-seconds", "5")
    with (
        TemporaryDirectory() as scratch,
        running_server(str(make_folder(Path(scratch))), *size, *more, model="tiny") as server,
    ):
        warm = Crowd(server.address, "tiny", [None], options.clients, seed=1)
        warm.run(min(20.0, options.soak / 4), lambda: True)
        before = memory_of(server)
        crowd = Crowd(server.address, "tiny", [None], options.clients)
        crowd.run(options.soak, lambda: server.get("/health/progress").status_code == 200)
        server.until("it is idle", server.is_idle, 120)
        after = memory_of(server)
        print(f"\n{options.clients} clients for {options.soak} s: {crowd.calls:,} calls, {crowd.left:,} left early")
        print(f"  answers by status: {dict(sorted(crowd.statuses.items()))}; connections cut {crowd.cut}")
        deaths = len(server.told("engine_died"))
        print(f"  stalls {crowd.stalls}; progress lost {crowd.lost_progress} times; engine deaths {deaths}")
        books, used = server.metric("quire_books_balance") == 1, server.metric("quire_pages", state="used")
        print(f"  books balance: {books}; pages still used {used:.0f}")
        for name in before:
            print(f"  {name}: {before[name] / 2**20:.0f} MiB before, {after[name] / 2**20:.0f} MiB after")


def memory_of(server: RunningServer) -> dict[str, float]:
    return {
        "HTTP process": server.metric("process_resident_memory_bytes"),
        "engine": server.metric("quire_engine_resident_bytes"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--outputs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--scope-prompt", type=int, default=256)
    parser.add_argument("--scope-turns", type=int, default=7)
    parser.add_argument("--soak", type=float, metavar="SECONDS")
    options = parser.parse_args()
    options.clients = options.clients or (200 if options.soak else 16)
    soak(options) if options.soak else compare(options)


if __name__ == "__main__":
    main()
