"""Drafts by lookup: how many tokens a step yields on a transcript that repeats itself, and what looking up costs.

    python bench/drafts.py [--json]

The transcript is made by rule, the same in every run: sessions of an agent that edits files. An answer calls a tool
that reads a file, repeats that file with three of its 40 lines changed, or writes prose that never repeats. Each
request's prompt is its session so far. Answers are replayed: a draft is accepted if it is the answer's next token, as
a model that generates exactly this answer would accept it. No model runs, so tokens per step are exact, and seconds are
those of the drafter alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from quire.core.drafting import Drafter
from quire.core.request import Tokens
from quire.text.ngrams import NGramDrafter
from quire.text.suffixes import SuffixDrafter

VOCABULARY = 100_000
MEMORY_BYTES = 64 << 20
SESSIONS, TURNS = 8, 6
LOOKAHEADS = (4, 8, 16)
STEP_SECONDS = 3.6e-3
"""A decode step of 256 rows of the 1B shape on an H200."""


@dataclass(frozen=True)
class Answer:
    kind: str
    scope: str
    prompt: Tokens
    tokens: Tokens


def transcript() -> Iterator[Answer]:
    """Sessions in turns. Half of them share files, as colleagues do: they have one scope."""
    random = np.random.default_rng(7)
    lines = [random.integers(10, 2_000, 12) for _ in range(400)]
    files = [[lines[random.integers(len(lines))] for _ in range(40)] for _ in range(6)]
    paths = [random.integers(10, VOCABULARY, 9) for _ in files]
    call, end = random.integers(10, VOCABULARY, 14), random.integers(10, VOCABULARY, 6)
    said: list[list[np.ndarray]] = [[random.integers(10, VOCABULARY, 300)] for _ in range(SESSIONS)]
    for turn in range(TURNS):
        for session in range(SESSIONS):
            number = (session + turn // 3) % len(files)
            scope = "shared" if session % 2 else f"own {session}"
            kind = ("tool call", "code edit", "prose")[turn % 3]
            if kind == "tool call":
                answer = [call, paths[number], end]
            elif kind == "code edit":
                for place in random.integers(0, 40, 3).tolist():
                    files[number][place] = random.integers(10, 2_000, 12)
                answer = [paths[number], *files[number]]
            else:
                answer = [random.integers(10, VOCABULARY, 200)]
            prompt = np.concatenate(said[session]).astype(np.int32)
            yield Answer(kind, scope, prompt, np.concatenate(answer).astype(np.int32))
            result = [*files[number]] if kind == "tool call" else [random.integers(10, VOCABULARY, 40)]
            said[session] += [*answer, *result]


def replay(answer: Answer, drafter: Drafter, lookahead: int) -> tuple[int, int, int]:
    """(steps, drafts proposed, drafts accepted)."""
    row, left, steps, proposed, accepted = np.array([0]), answer.tokens, 0, 0, 0
    drafter.enter(0, np.concatenate([answer.prompt, left[:1]]), answer.scope)
    left = left[1:]
    while len(left):
        most = min(lookahead, len(left) - 1)
        drafts = drafter.propose(row, np.array([most]), 1).get(0, left[:0]) if most else left[:0]
        right = np.flatnonzero(drafts != left[: len(drafts)])
        count = int(right[0]) if len(right) else len(drafts)
        for token in left[: count + 1]:
            drafter.extend(row, np.array([token], dtype=np.int32))
        steps, proposed, accepted = steps + 1, proposed + len(drafts), accepted + count
        left = left[count + 1 :]
    return steps, proposed, accepted


def measure(make: Callable[[], Drafter], lookahead: int) -> dict[str, object]:
    drafter, sums = make(), {}
    for answer in transcript():
        steps, proposed, accepted = replay(answer, drafter, lookahead)
        for kind in (answer.kind, "all"):
            sums[kind] = sums.get(kind, 0) + np.array([len(answer.tokens) - 1, steps, proposed, accepted])
    per_step = {f"tokens per step, {kind}": round(float(one[0] / one[1]), 2) for kind, one in sorted(sums.items())}
    share = sums["all"][3] / max(1, sums["all"][2])
    return per_step | {"drafts accepted": f"{share:.0%}"}


def cost(make: Callable[[int], Drafter], rows: int, steps: int = 600) -> tuple[float, float]:
    """(median, mean) seconds of a step in which every row has a token more and none repeats itself: of CPU time, so
    that other programs do not count."""
    random, numbers, drafter = np.random.default_rng(0), np.arange(rows), make(rows)
    for row in range(rows):
        drafter.enter(row, random.integers(0, VOCABULARY, 256 + row).astype(np.int32), "")
    tokens, counts, took = random.integers(0, VOCABULARY, (steps, rows)).astype(np.int32), np.full(rows, 8), []
    for each in tokens:
        begin = time.thread_time()
        drafter.extend(numbers, each)
        drafter.propose(numbers, counts, rows)
        took.append(time.thread_time() - begin)
    return float(np.median(took[20:])), float(np.mean(took[20:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    makers: dict[str, Callable[[int], Drafter]] = {
        "ngram": lambda _rows: NGramDrafter(),
        "suffix": lambda rows: SuffixDrafter(rows, MEMORY_BYTES),
    }
    found = {
        "accepted": [
            {"drafter": name, "lookahead": lookahead, **measure(lambda make=make: make(1), lookahead)}
            for lookahead in LOOKAHEADS
            for name, make in makers.items()
        ],
        "cost": [
            {
                "drafter": name,
                "rows": rows,
                "µs per step, median": round(1e6 * (seconds := cost(make, rows))[0], 1),
                "mean": round(1e6 * seconds[1], 1),
                "µs per row": round(1e6 * seconds[0] / rows, 2),
                f"of a step of {STEP_SECONDS * 1e3} ms": f"{seconds[0] / STEP_SECONDS:.1%}",
            }
            for rows in (1, 64, 256)
            for name, make in makers.items()
        ],
    }
    if options.json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    for table in found.values():
        print("| " + " | ".join(table[0]) + " |\n" + "| --- " * len(table[0]) + "|")
        print("\n".join("| " + " | ".join(map(str, line.values())) + " |" for line in table) + "\n")


if __name__ == "__main__":
    main()
