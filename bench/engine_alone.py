"""The engine alone in a process of its own, as `quire serve` starts it: the same options, threads and form of weights.

python bench/engine_alone.py OPTIONS     (started by bench/serve.py; a line of JSON in, a line of JSON out)
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Work:
    requests: int
    prompt: int
    outputs: int
    seed: int

    @property
    def tokens(self) -> int:
        return self.requests * self.outputs


@dataclass(frozen=True)
class Took:
    seconds: float
    processor_seconds: float


def prompts_of(work: Work) -> list[list[int]]:
    return np.random.default_rng(work.seed).integers(100, 40_000, (work.requests, work.prompt)).tolist()


class EngineAlone:
    """Driven from another process."""

    def __init__(self, folder: Path, clients: int, pool_bytes: int, threads: int | None) -> None:
        options = {"folder": str(folder), "clients": clients, "pool_bytes": pool_bytes, "threads": threads}
        command = [sys.executable, __file__, json.dumps(options)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.started = self._answer()["started"]

    def run(self, work: Work) -> Took:
        self.process.stdin.write(json.dumps(asdict(work)) + "\n")
        self.process.stdin.flush()
        return Took(**self._answer())

    def _answer(self) -> dict[str, object]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the engine alone has ended: see the lines above")
        found: dict[str, object] = json.loads(line)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def main(folder: str, clients: int, pool_bytes: int, threads: int | None) -> None:
    from quire.build.engine import build_engine, prepare
    from quire.core.request import Request
    from quire.options.run import RunOptions
    from quire.plan.settings import Budget, Settings

    settings = Settings(max_requests=clients, batch_tokens=2048, max_length=2048)
    options, budget = RunOptions(device="cpu", threads=threads), Budget(pool_bytes=pool_bytes)
    built = build_engine(prepare(folder, options, settings=settings, budget=budget))
    gc.collect()
    gc.freeze()  # as in the server's engine
    print(json.dumps({"started": built.report.lines()}), flush=True)
    for line in sys.stdin:
        work = Work(**json.loads(line))
        prompts = [np.array(prompt, dtype=np.int32) for prompt in prompts_of(work)]
        begin, used = time.perf_counter(), time.process_time()
        for place, prompt in enumerate(prompts):
            built.engine.submit(Request(f"{work.seed}-{place}", prompt, work.outputs))
        built.engine.drain()
        print(json.dumps(asdict(Took(time.perf_counter() - begin, time.process_time() - used))), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
