"""Decode on a CPU that other programs use too: by what multiplies, and how its threads wait for each other.

    python bench/busy.py [--outputs 32] [--rounds 3] [--others 2]

Each way of waiting has a process of its own, stopped while it is not measured. Rounds are interleaved, first alone,
then with other processes that compute all the time. The median round of each counts, and the quiet figures need a
machine that does nothing else. Threads of the products in C wait in one way; the other ways are those of torch, for
machines where Quire was installed without a compiler.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack

ASLEEP, TORCH = {"OMP_WAIT_POLICY": "passive"}, {"QUIRE_NATIVE": "off"}
WAYS = {
    "in C (Quire's default)": ASLEEP,
    "in C, one thread": {**ASLEEP, "OMP_NUM_THREADS": "1"},
    "torch, asleep": {**TORCH, **ASLEEP},
    "torch, spinning 1,000 times": {**TORCH, **ASLEEP, "GOMP_SPINCOUNT": "1000"},
    "torch, spinning": {**TORCH, "OMP_WAIT_POLICY": "active"},
}


class Way:
    """A process with a model that multiplies, and whose threads wait, in one way."""

    def __init__(self, settings: dict[str, str], outputs: int) -> None:
        command = [sys.executable, __file__, "--child", "--outputs", str(outputs)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env={**os.environ, **settings}, **pipes)  # type: ignore[call-overload]
        self.products = self.process.stdout.readline().strip()
        """What multiplies, as the start reports it."""
        self._answer()

    def seconds(self) -> float:
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> float:
        taken = float(self.process.stdout.readline())
        self.process.send_signal(signal.SIGSTOP)
        return taken

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def child(outputs: int) -> None:
    from quire.llm import LLM
    from quire.plan.settings import Budget, Settings

    llm = LLM(device="cpu", settings=Settings(max_length=512, max_requests=4), budget=Budget(pool_bytes=64 << 20))
    llm.generate("Once", max_tokens=4, raw=True)
    print("; ".join(llm.parts.report.kernels), flush=True)
    print(0.0, flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        llm.generate("Once upon a time", max_tokens=outputs, raw=True)
        print(time.perf_counter() - begin, flush=True)


def median(ways: dict[str, Way], rounds: int) -> dict[str, float]:
    """Seconds of a round."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way.seconds())
            print(".", end="", file=sys.stderr, flush=True)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--others", type=int, default=2)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.outputs)
        return
    with ExitStack() as stack:
        ways = {}
        for name, settings in WAYS.items():
            ways[name] = Way(settings, options.outputs)
            stack.callback(ways[name].close)
        quiet = median(ways, options.rounds)
        for _ in range(options.others):
            stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        busy = median(ways, options.rounds)
    print(f"\n| products | tokens/s | with {options.others} busy processes | times as long |")
    print("| --- | --- | --- | --- |")
    for name in ways:
        alone, together = options.outputs / quiet[name], options.outputs / busy[name]
        print(f"| {name}: {ways[name].products} | {alone:.1f} | {together:.1f} | {alone / together:.1f} |")


if __name__ == "__main__":
    main()
