"""The vLLM column of bench/reuse.py: vLLM 0.32.0's scheduler in a process of its own (bench/peer_reuse.py)."""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from peer_environment import peer_python
from quire.core.request import Tokens
from quire.plan.plan import KindPlan
from reuse_drive import Batch
from reuse_pools import BATCH_TOKENS, MOST_REQUESTS

SCRIPT = Path(__file__).with_name("peer_reuse.py")


class Refused(Exception):
    """Its planner does not start in a pool of this size."""


class PeerProcess:
    """Started once: its imports take longer than a run."""

    def __init__(self) -> None:
        command = [str(peer_python()), str(SCRIPT)]
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
        )

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._said.seek(0)
            raise RuntimeError(f"{SCRIPT.name} ended with {self._process.wait()}: {self._said.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@cache
def process() -> PeerProcess:
    return PeerProcess()


def layers_of(kinds: Sequence[KindPlan], exports: bool) -> list[dict[str, Any]]:
    """What one rank keeps, layer by layer. `exports`: the model's kernel saves a state in passing, within a chunk."""
    layers: Counter[tuple[tuple[str, Any], ...]] = Counter()
    for kind in kinds:
        by_layer: dict[int, list[Any]] = {}
        for entry in kind.manifest:
            by_layer.setdefault(entry.layer, []).append(entry)
        for entries in by_layer.values():
            if kind.kind.kind == "state":
                size = sum(entry.heads * entry.row_bytes for entry in entries)
                layer = {"kind": "state", "bytes": size, "exports": exports}
            else:
                key, value = entries
                assert (key.heads, key.row_bytes) == (value.heads, value.row_bytes), "keys as wide as values"
                layer = {"kind": kind.kind.kind, "heads": key.heads, "width": key.row_bytes // 2}
                layer |= {"window": kind.kind.fixed_units} if kind.kind.kind == "window" else {}
            layers[tuple(layer.items())] += 1
    return [{**dict(layer), "count": count} for layer, count in layers.items()]


class PeerServer:
    def __init__(self, kinds: Sequence[KindPlan], pool_bytes: int, longest: int, exports: bool = False) -> None:
        question = {
            "layers": layers_of(kinds, exports),
            "pool": pool_bytes,
            "longest": longest,
            "budget": BATCH_TOKENS,
            "rows": MOST_REQUESTS,
        }
        answer = process().ask(question)
        if "refused" in answer:
            raise Refused(answer["refused"])
        self.blocks, self.block_tokens = answer["blocks"], answer["block_tokens"]
        self._coming: list[list[Any]] = []
        self._lengths: dict[int, int] = {}
        self._ended: list[int] = []
        self._hits: dict[int, int] = {}

    def submit(self, place: int, known: Tokens, prompt_tokens: int) -> None:
        packed = base64.b64encode(known.astype("int32").tobytes()).decode()
        self._coming.append([place, prompt_tokens, packed])
        self._lengths[place] = prompt_tokens

    def schedule(self) -> Batch | None:
        """The step is applied there at once: answers are known, and nobody comes meanwhile."""
        answer = process().ask({"submit": self._coming})
        self._coming = []
        for place, tokens in answer["hits"]:
            self._hits.setdefault(place, tokens)
        self._ended = answer["ended"]
        if not answer["steps"]:
            return None
        places, starts, counts = zip(*answer["steps"], strict=True)
        samples = sum(start + count >= self._lengths[place] for place, start, count in answer["steps"])
        return Batch(places, starts, counts, samples)

    def complete(self, batch: Batch) -> Sequence[int]:
        del batch
        return self._ended

    def hits(self) -> dict[int, int]:
        return self._hits
