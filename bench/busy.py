"""Decode on a CPU that other programs use too: how torch's threads should wait for each other.

    python bench/busy.py [--outputs 32] [--rounds 3] [--others 2]

Each way of waiting has a process of its own, stopped while it is not measured. Rounds are interleaved, first alone,
then with other processes that compute all the time. The best round of each counts, and so the quiet figures need a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

WAYS = {
    "asleep (Quire's default)": {"OMP_WAIT_POLICY": "passive"},
    "spinning 1,000 times": {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"},
    "spinning 10,000 times": {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"},
    "spinning": {"OMP_WAIT_POLICY": "active"},
}


class Way:
    """A process with a model, whose threads wait in one way."""

    def __init__(self, settings: dict[str, str], outputs: int) -> None:
        command = [sys.executable, __file__, "--child", "--outputs", str(outputs)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env={**os.environ, **settings}, **pipes)  # type: ignore[call-overload]
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
    print(0.0, flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        llm.generate("Once upon a time", max_tokens=outputs, raw=True)
        print(time.perf_counter() - begin, flush=True)


def best(ways: dict[str, Way], rounds: int) -> dict[str, float]:
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            found[name] = min(found[name], way.seconds())
            print(".", end="", file=sys.stderr, flush=True)
    return found


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
        quiet = best(ways, options.rounds)
        for _ in range(options.others):
            stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        busy = best(ways, options.rounds)
    print(f"\n| threads wait | tokens/s | with {options.others} busy processes | times as long |")
    print("| --- | --- | --- | --- |")
    for name in ways:
        alone, together = options.outputs / quiet[name], options.outputs / busy[name]
        print(f"| {name} | {alone:.1f} | {together:.1f} | {alone / together:.1f} |")


if __name__ == "__main__":
    main()
