"""The work of bench/peer.py, the same for every engine: what is asked, and what counts of the time that it takes.

    decode     (time of 128 outputs − time of 32) ÷ 96, for rows with prompts of 1,024 tokens
    prompts    rows with one output each
    requests   all at once, until the last token of the last one
    waves      sessions that all return for their next turn: seconds of the later turns

No two prompts are alike, but those of sessions. Each work runs once before it is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
SHORT, LONG = 32, 128
"""Outputs of the two runs whose difference is decode steps."""
SMALLEST_TOKEN = 3
GIB = 1 << 30


class Side(Protocol):
    """An engine that is ready."""

    vocabulary: int

    def generate(self, prompts: Sequence[Tokens], outputs: Sequence[int]) -> tuple[float, list[Tokens]]:
        """Seconds until all have ended, and what each of them generated."""


@dataclass(frozen=True, slots=True)
class Case:
    """What one engine is started for, and what it does then."""

    name: str
    work: str
    model: str
    rows: int
    prompt: int = 1024
    outputs: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    longest: int = 4096
    pool_bytes: int | None = None
    """None: most of the GPU."""
    layers: int | None = None
    """None: all."""

    @property
    def engine(self) -> tuple[object, ...]:
        """Cases of one engine are equal in this."""
        return self.model, self.layers, self.longest, self.pool_bytes, self.temperature, self.top_p

    @property
    def unit(self) -> str:
        return "ms a step" if self.work == "decode" else "s"

    def fields(self) -> dict[str, object]:
        return asdict(self)


SESSIONS = (24, 36, 48, 72)
DRAWN = {"temperature": 1.0, "top_p": 0.9}
CASES = (
    *(Case(f"decode, 1B, {rows} rows", "decode", "llama-3.2-1b", rows) for rows in (1, 8, 256)),
    Case("decode, 1B, 256 rows, temperature 1, top-p 0.9", "decode", "llama-3.2-1b", 256, **DRAWN),
    Case("prompts, 1B, 256 × 1,024", "prompts", "llama-3.2-1b", 256),
    Case("128 requests, 512 + 128, 1B", "requests", "llama-3.2-1b", 128, prompt=512),
    *(Case(f"decode, 8B, {rows} rows", "decode", "llama-3.1-8b", rows) for rows in (1, 8, 32, 128, 256)),
    Case("prompts, 8B, 128 × 1,024", "prompts", "llama-3.1-8b", 128),
    Case("512 mixed requests, 8B", "mixed", "llama-3.1-8b", 512),
    Case("decode, Gemma-3-12B, 64 rows", "decode", "gemma-3-12b", 64),
    Case("prompts, Gemma-3-12B, 64 × 1,024", "prompts", "gemma-3-12b", 64),
    *(Case(f"decode, Qwen3-30B-A3B, {rows} rows", "decode", "qwen3-30b-a3b", rows) for rows in (64, 256)),
    Case("prompts, Qwen3-30B-A3B, 64 × 1,024", "prompts", "qwen3-30b-a3b", 64),
    *(
        Case(f"{count} sessions return, Gemma-3-12B", "waves", "gemma-3-12b", count, 2048, 64, longest=12288,
             pool_bytes=20 * GIB)
        for count in SESSIONS
    ),
)  # fmt: skip
ON_A_CPU = (
    Case("decode, SmolLM2-135M, 4 rows", "decode", "smollm2-135m", 4, prompt=64, longest=512),
    Case("8 mixed requests, SmolLM2-135M", "mixed", "smollm2-135m", 8, longest=512),
    Case("3 sessions return, SmolLM2-135M", "waves", "smollm2-135m", 3, 64, 8, longest=512),
)
TURNS, LATER_WORDS = 4, 512


def measure(case: Case, side: Side, seed: int) -> float:
    """Seconds, or milliseconds of a decode step. No work has the prompts of another, which an engine may still have."""
    random = np.random.default_rng([seed, *case.name.encode()])
    return WORK[case.work](case, side, random)


def prompts_of(random: np.random.Generator, lengths: Sequence[int], vocabulary: int) -> list[Tokens]:
    return [random.integers(SMALLEST_TOKEN, vocabulary, length, dtype=np.int32) for length in lengths]


def _run(side: Side, random: np.random.Generator, lengths: Sequence[int], outputs: Sequence[int]) -> float:
    seconds, found = side.generate(prompts_of(random, lengths, side.vocabulary), outputs)
    missing = sum(outputs) - sum(map(len, found))
    if missing:
        raise RuntimeError(f"{missing} of {sum(outputs)} tokens were not generated")
    return seconds


def _decode(case: Case, side: Side, random: np.random.Generator) -> float:
    took = [_run(side, random, [case.prompt] * case.rows, [count] * case.rows) for count in (SHORT, LONG) * 2]
    return 1e3 * (min(took[1], took[3]) - min(took[0], took[2])) / (LONG - SHORT)


def _prompts(case: Case, side: Side, random: np.random.Generator) -> float:
    return min(_run(side, random, [case.prompt] * case.rows, [1] * case.rows) for _ in range(3))


def _requests(case: Case, side: Side, random: np.random.Generator) -> float:
    return min(_run(side, random, [case.prompt] * case.rows, [case.outputs] * case.rows) for _ in range(3))


def _mixed(case: Case, side: Side, random: np.random.Generator) -> float:
    """Lengths are the same for every engine and round."""
    lengths = np.random.default_rng(0)
    longest = min(2048, case.longest // 2)
    prompts = lengths.integers(longest // 16, longest + 1, case.rows).tolist()
    outputs = lengths.integers(longest // 64, longest // 4 + 1, case.rows).tolist()
    return min(_run(side, random, prompts, outputs) for _ in range(2))


def _waves(case: Case, side: Side, random: np.random.Generator) -> float:
    """Each turn goes on from what the engine answered."""
    said, seconds = prompts_of(random, [case.prompt] * case.rows, side.vocabulary), []
    for _ in range(TURNS):
        order = random.permutation(case.rows).tolist()
        took, answers = side.generate([said[session] for session in order], [case.outputs] * case.rows)
        seconds.append(took)
        words = prompts_of(random, [min(LATER_WORDS, case.prompt)] * case.rows, side.vocabulary)
        for session, answer in zip(order, answers, strict=True):
            said[session] = np.concatenate([said[session], answer, words[session]])
    return sum(seconds[1:])


WORK = {"decode": _decode, "prompts": _prompts, "requests": _requests, "mixed": _mixed, "waves": _waves}
