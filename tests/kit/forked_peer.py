"""An engine in a process of its own that can be killed and started again within a moment.

The model is built once, in a process that only forks; each fork is one life of the engine.

    python forked_peer.py prefill MODEL PAGE PORT    listens
    python forked_peer.py decode MODEL PAGE PORT     sends prompts without end
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


class ForkedPeer:
    """The test's end: `start` waits until the engine is there, `kill` ends it without a word."""

    def __init__(self, role: str, model: str, page: int, port: int) -> None:
        command = [sys.executable, __file__, role, model, str(page), str(port)]
        one_thread = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
        }  # threads do not live through a fork: it would wait for them
        self._forking = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=one_thread
        )
        self._process = 0

    def start(self) -> None:
        assert self._forking.stdin is not None
        assert self._forking.stdout is not None
        self._forking.stdin.write("start\n")
        self._forking.stdin.flush()
        self._process = int(self._forking.stdout.readline())

    def kill(self) -> None:
        if self._process:
            os.kill(self._process, signal.SIGKILL)
        self._process = 0

    def __enter__(self) -> ForkedPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self._forking.stdin, self._forking.stdout):
            assert stream is not None
            stream.close()
        self._forking.wait()


def main(role: str, model: str, page: int, port: int) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from handed import DecodeSide, PrefillSide
    from tiny_models import plan_of, reference

    reference(model)
    plan = plan_of(model, batch_tokens=32, pages={"": page})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that were killed
    for _ in sys.stdin:
        if os.fork():
            continue
        side = PrefillSide(model, plan, port=port) if role == "prefill" else DecodeSide(model, plan, port)
        print(os.getpid(), flush=True)
        live(side)


def live(side: object) -> None:
    from handed import DecodeSide, PrefillSide, prompt_of

    number = 0
    while True:
        if isinstance(side, DecodeSide) and len(side.hand_over) + len(side.engine.streams) < 4:
            number += 1
            side.send(f"{number}", prompt_of(70, number), 3, scope=f"{os.getpid()} {number}")
        if isinstance(side, DecodeSide | PrefillSide):
            side.turn()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
