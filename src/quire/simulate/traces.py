"""Traces: arrival times, lengths and shared prefixes of requests. Reads the formats of other projects.

Mooncake   {"timestamp": ms, "input_length": …, "output_length": …, "hash_ids": [one per 512 tokens]}   a line each
Azure      TIMESTAMP,ContextTokens,GeneratedTokens                                    a header, then a line each
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from quire.core.errors import InputError
from quire.core.request import Retain
from quire.simulate.tokens import Recipe, scrambled, seed_of

MOONCAKE_BLOCK = 512
MOONCAKE_SECONDS = 3.0
"""Its times are rounded down to buckets of about this size."""
LONGEST = 1 << 30
_GZIP = b"\x1f\x8b"
_AZURE_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One request of a trace."""

    name: str
    recipe: Recipe
    output_tokens: int
    seconds: float
    """When it arrives; with `after`: how long after the last token of that request."""
    after: int | None = None
    """Place in the trace of the request whose answer it continues from."""
    tenant: str = ""
    priority: int = 0
    retain: Retain | None = None
    """The lease that it asks for."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    name: str
    requests: tuple[Asked, ...]

    def at_rate(self, rate: float) -> Trace:
        """The same requests, `rate` a second on average as long as answers do not hold up the next turns."""
        openers = [asked.seconds for asked in self.requests if asked.after is None]
        begin, span = min(openers), max(openers) - min(openers)
        wanted = (len(self.requests) - 1) / rate
        factor = wanted / span if span else 0.0
        even = 0.0 if span else 1 / rate
        scaled = [
            asked
            if asked.after is not None
            else replace(asked, seconds=(asked.seconds - begin) * factor + even * place)
            for place, asked in enumerate(self.requests)
        ]
        return Trace(self.name, tuple(scaled))


def read_trace(path: Path, most: int | None) -> Trace:
    """The first `most` requests of a file, plain or compressed; its first line determines the format."""
    lines = _lines(path)
    if not lines:
        raise InputError(f"{path}: the trace is empty: give a file with at least 1 request")
    first = lines[0].strip()
    if first.startswith("{"):
        requests = _mooncake(path, lines if most is None else lines[:most])
    elif first.split(",") == _AZURE_COLUMNS:
        requests = _azure(path, lines[1:] if most is None else lines[1 : most + 1])
    else:
        raise InputError(f"{path}: line 1 is neither Mooncake's JSON nor Azure's {','.join(_AZURE_COLUMNS)}")
    if not requests:
        raise InputError(f"{path}: the trace holds no request: give a file with at least 1")
    return Trace(path.name, tuple(requests))


def _lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8-sig").splitlines()
    except FileNotFoundError:
        raise InputError(f"--trace {path}: there is no such file, and synthetic traces begin with synthetic:") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"--trace {path} cannot be read: {str(error).splitlines()[0]}") from None


def _parsed(
    path: Path, lines: Sequence[str], first_number: int, parse: Callable[[str], tuple[float, Recipe, int]]
) -> Iterator[tuple[float, Recipe, int]]:
    for number, line in enumerate(lines, first_number):
        if line.strip():
            try:
                yield parse(line)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                problem = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
                raise InputError(f"{path}: line {number} cannot be understood: {problem}") from None


def _mooncake(path: Path, lines: Sequence[str]) -> list[Asked]:
    found = sorted(_parsed(path, lines, 1, _mooncake_line), key=_moment)
    arrivals = spread([seconds for seconds, _, _ in found])
    return [
        Asked(f"r{place}", recipe, output, seconds)
        for place, (seconds, (_, recipe, output)) in enumerate(zip(arrivals, found, strict=True))
    ]


def _mooncake_line(line: str) -> tuple[float, Recipe, int]:
    record = json.loads(line)
    tokens, ids = _count(record["input_length"], 1), record["hash_ids"]
    blocks = -(-tokens // MOONCAKE_BLOCK)
    if len(ids) != blocks:
        raise ValueError(f"{len(ids)} hash_ids for {tokens:,} tokens, not one per {MOONCAKE_BLOCK}")
    counts = np.full(blocks, MOONCAKE_BLOCK, dtype=np.int64)
    counts[-1] = tokens - MOONCAKE_BLOCK * (blocks - 1)
    seeds = scrambled(np.array([_count(one, 0) for one in ids], dtype=np.uint64))
    recipe = Recipe(seeds, np.zeros(blocks, dtype=np.int64), counts)
    milliseconds = float(record["timestamp"])
    if not 0 <= milliseconds < math.inf:
        raise ValueError(f"timestamp is {milliseconds}, not a number of milliseconds")
    return milliseconds / 1e3, recipe, max(1, _count(record["output_length"], 0))


def _azure(path: Path, lines: Sequence[str]) -> list[Asked]:
    found = sorted(_parsed(path, lines, 2, _azure_line), key=_moment)
    begin = found[0][0] if found else 0.0
    return [
        Asked(f"r{place}", Recipe.of([(seed_of(f"prompt {place}"), 0, recipe.tokens)]), output, seconds - begin)
        for place, (seconds, recipe, output) in enumerate(found)
    ]


def _azure_line(line: str) -> tuple[float, Recipe, int]:
    moment, prompt, output = line.split(",")
    when = datetime.fromisoformat(moment)
    seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return seconds, Recipe.of([(0, 0, _count(int(prompt), 1))]), max(1, _count(int(output), 0))


def _moment(found: tuple[float, Recipe, int]) -> float:
    return found[0]


def _count(value: object, least: int) -> int:
    if not isinstance(value, int) or not least <= value <= LONGEST:
        raise ValueError(f"{value!r} is not a whole number from {least} to {LONGEST:,}")
    return value


def spread(seconds: Sequence[float]) -> list[float]:
    """Spreads arrivals that were rounded down to the same moment evenly over the interval that was rounded away."""
    moments = np.array(seconds, dtype=np.float64)
    starts = np.flatnonzero(np.diff(moments, prepend=-1.0))
    sizes = np.diff(starts, append=len(moments))
    gaps = np.minimum(np.diff(moments[starts], append=np.inf), MOONCAKE_SECONDS)
    within = np.arange(len(moments)) - np.repeat(starts, sizes)
    return [float(one) for one in moments + within * np.repeat(gaps / sizes, sizes)]
