"""Tokens per second of the server beside the engine alone, the default model, the same requests, one run.

    python bench/serve.py [--clients 16] [--turns 2] [--prompt 64] [--outputs 64] [--rounds 2] [--threads N]
    python bench/serve.py --soak 120 [--clients 200]

The engine alone has a process of its own, with the same options. It gets all requests at once and is drained; the
server gets them from so many clients, each of which sends the next one when the one before has streamed to its end.
Rounds are interleaved. On a machine that others use too, compare tokens per processor second with `--threads 1`: the
server's are those of both its processes. Then requests that can never fit are refused while others stream, and one
prompt is asked by keys of different scopes. With --soak a crowd of clients uses every API of a tiny model instead, in
a pool too small for all of them: it streams, disconnects, cancels, aborts, floods and sends invalid bodies. What is
left of it is counted, and the run fails if a call was answered with 5xx or stalled, if progress was lost, or if
anything is still held.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))

from chaos import Crowd
from engine_alone import EngineAlone, Took, Work, prompts_of
from quire.fetch.default import fetch_default
from quire.serve.keys import Tenant, add_key
from running_server import RunningServer, running_server
from serve_load import Seen, call
from tiny_folder import make_folder

POOL_BYTES = 1 << 30
MODEL = "smollm2-135m-instruct"


MOST_REQUESTS = 400
"""Of each key: more than the queue of the soak has, so that both limits are met."""
REFUSED_WAYS = ("too long /v1/chat/completions", "nonsense")
"""Of the soak: calls that are never answered with 200."""
KEYS: dict[str, str] = {}
"""By name; made when the server starts."""
SCOPES = {"nobody has asked it": "one", "another scope has": "another", "the same scope has": "one's other"}
"""The same prompt, and the key that asks it, in this order."""
TEXT = "How long is a piece of string? "
TOO_LONG = {
    "an answer of 100,000 tokens": {"prompt": TEXT * 40, "max_tokens": 100_000},
    "a prompt of 2,561 tokens": {"prompt": TEXT * 320, "max_tokens": 1},
}


def keys_in(folder: Path, most_requests: int | None = None) -> tuple[str, str, str]:
    """Two keys of one scope, and one of another: as an option of the server. `most_requests`: of each."""
    file = folder / "keys.json"
    for name, scope in (("one", "one"), ("one's other", "one"), ("another", "another")):
        KEYS[name] = add_key(file, Tenant(name, scope, most_requests=most_requests))
    return "--keys", str(file), "--open-metrics"


def client_of(address: str, key: str, connections: int) -> httpx.AsyncClient:
    limits, headers = httpx.Limits(max_connections=connections), {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=address, timeout=600, limits=limits, headers=headers)


def served(server: RunningServer, work: Work, clients: int) -> Took:
    begin, used = time.perf_counter(), processor_seconds(server)
    asyncio.run(_clients(server, work, clients))
    return Took(time.perf_counter() - begin, processor_seconds(server) - used)


async def _clients(server: RunningServer, work: Work, clients: int) -> None:
    """On plain sockets: what they need of the processor is missing to the server."""
    prompts, seen, port = prompts_of(work), Seen(), int(server.address.rpartition(":")[2])

    async def one(place: int) -> None:
        for prompt in prompts[place::clients]:
            await call(port, prompt, work.outputs, seen, MODEL, KEYS["one"])

    await asyncio.gather(*map(one, range(clients)))
    assert (seen.tokens, seen.failed) == (work.tokens, 0), f"{seen.tokens} tokens came, {seen.failed} calls failed"


def processor_seconds(server: RunningServer) -> float:
    """Of the HTTP process and the engine's."""
    return sum(_process_seconds(process) for process in (server.process.pid, server.engine))


def _process_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    size = ("--device", "cpu", "--pool", str(POOL_BYTES), "--max-requests", str(options.clients))
    size += ("--batch-tokens", "2048", "--max-length", "2048")
    engine = EngineAlone(folder, options.clients, POOL_BYTES, options.threads)
    rounds: list[tuple[Took, Took]] = []
    with (
        TemporaryDirectory() as scratch,
        running_server(str(folder), *size, *keys_in(Path(scratch)), model=MODEL, threads=options.threads) as server,
    ):
        requests = options.clients * options.turns
        for turn in range(options.rounds + 1):
            work = Work(requests, options.prompt, options.outputs, turn)
            rounds.append((engine.run(work), served(server, work, options.clients)))
            print(".", end="", file=sys.stderr, flush=True)
        engine.close()
        report_speeds(work, rounds[1:])  # the first round warms both up
        started = [line.strip() for line in server.report if line.startswith("kernels")]
        print(f"  engine alone: {'; '.join(engine.started)}\n  server:       {'; '.join(started)}")
        refused, still = asyncio.run(refusals(server.address, options.streams))
        firsts = asyncio.run(first_tokens(server.address, options.scope_prompt, options.scope_turns))
    print(f"  what can never fit, while {options.streams} others stream ({still} still did at the end), is refused in:")
    for name, took in refused.items():
        median, worst = np.median(took) * 1e3, max(took) * 1e3
        print(f"    {name:<32}{median:.1f} ms (median of {len(took)}), {worst:.1f} ms at worst")
    print(f"  time to the first token of {options.scope_prompt} tokens, median of {options.scope_turns} turns:")
    for name, seen in firsts.items():
        seconds, hits = zip(*seen, strict=True)
        spread = f"{np.median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
        print(f"    {name:<32}{spread}, {np.median(hits):.0f} tokens reused")


def report_speeds(work: Work, rounds: list[tuple[Took, Took]]) -> None:
    """Rounds are compared one by one: what else the machine does changes from round to round."""
    print(
        f"\n{work.tokens:,} tokens of output, prompts of {work.prompt} tokens, {len(rounds)} rounds; the best, and the"
    )
    print("ratio of each round:                   engine alone  server  server ÷ engine: median (spread)")
    for name, what in (("seconds", "tokens/s"), ("processor_seconds", "tokens per processor second")):
        engine, server = (np.array([work.tokens / getattr(pair[side], name) for pair in rounds]) for side in (0, 1))
        ratios = server / engine
        print(f"  {what:<37}{engine.max():12.1f}{server.max():8.1f}  {np.median(ratios):.3f}", end="")
        print(f" ({ratios.min():.3f} to {ratios.max():.3f})")


async def refusals(address: str, streams: int, times: int = 10) -> tuple[dict[str, list[float]], int]:
    """Seconds until a request for more tokens than the plan admits has its answer, while others stream. And how many of
    these still did at the end."""
    seconds: dict[str, list[float]] = {name: [] for name in TOO_LONG}
    async with client_of(address, KEYS["one"], streams + 1) as client:
        others = [asyncio.ensure_future(_one(client, [prompt], 24)) for prompt in prompts_of(Work(streams, 16, 24, 99))]
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
    for prompt in prompts_of(Work(turns + 1, length, 1, 7)):
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
        TemporaryDirectory() as folder,
        running_server(
            str(make_folder(Path(folder))), *size, *more, *keys_in(Path(scratch), MOST_REQUESTS), model="tiny"
        ) as server,
    ):
        keys = list(KEYS.values())
        warm = Crowd(server.address, "tiny", keys, options.clients, seed=1)
        warm.run(min(20.0, options.soak / 4), lambda: True)
        before = memory_of(server)
        crowd = Crowd(server.address, "tiny", keys, options.clients)
        crowd.run(options.soak, lambda: server.get("/health/progress").status_code == 200)
        server.until("it is audited", server.is_audited, 120)
        after = memory_of(server)
        print(f"\n{options.clients} clients for {options.soak} s: {crowd.calls:,} turns, {crowd.left:,} left early")
        print(f"  answers by status: {dict(sorted(crowd.statuses.items()))}")
        print(f"  answered with 200, by way and path: {dict(sorted(crowd.answered.items()))}")
        for name in before:
            print(f"  {name}: {before[name] / 2**20:.0f} MiB before, {after[name] / 2**20:.0f} MiB after")
        report(problems(crowd, server, keys))


def problems(crowd: Crowd, server: RunningServer, keys: list[str]) -> dict[str, float]:
    """By what went wrong or is still held: how much of it."""
    held = {
        "requests still counted by their key": sum(MOST_REQUESTS - remaining(server, key) for key in keys),
        "requests still open": server.metric("quire_requests_running") + server.metric("quire_requests_waiting"),
        "pages still used": server.metric("quire_pages", state="used"),
        "books that do not balance": 1 - server.metric("quire_books_balance"),
    }
    return {
        "answers of 5xx": sum(number for status, number in crowd.statuses.items() if status >= 500),
        "stalled calls": crowd.stalls,
        "connections cut": crowd.cut,
        "moments without progress": crowd.lost_progress,
        "deaths of the engine": len(server.told("engine_died")),
        "internal errors": len(server.told("internal_error")),
        "paths never answered": sum(not number for way, number in crowd.answered.items() if way not in REFUSED_WAYS),
        **held,
    }


def report(found: dict[str, float]) -> None:
    for name, number in found.items():
        print(f"  {name}: {number:.0f}")
    if any(found.values()):
        raise SystemExit("the soak has failed: see the numbers that are not 0")


def remaining(server: RunningServer, key: str) -> int:
    """Requests that a key may have in addition, as the server says."""
    with server.client(key) as client:
        return int(client.get("/v1/models").headers["x-ratelimit-remaining-requests"])


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
