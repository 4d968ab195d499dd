"""Recurrent layers over state pages in random order: the table `recurrent` of `quire bench kernels`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from quire.bench.measure import DEVICE, GRANULE, microseconds, random_numbers
from quire.core.step import Step, TableView
from quire.worker.backends.recurrent import Columns, Matrices, Recurrence
from quire.worker.backends.states import convolve, recur, rows_of
from quire.worker.pages.arena import Cut, PartView
from quire.worker.pages.captures import KindCaptures

RECURRENT = ((64, 1), (256, 1), (4, 2_048), (1, 8_192))
CAPTURE_TOKENS = 512
"""Between captures of a prompt; the first is half as far and one token on, where no chunk of 64 ends anyway."""


@dataclass(frozen=True)
class Mixer:
    """A recurrent layer's sizes; with a delta rule a state lies as (key, value), without as (value, key)."""

    heads: int
    key_heads: int
    keys: int
    values: int
    has_delta: bool


MIXERS = {"Gated DeltaNet": Mixer(32, 32, 128, 128, True), "Mamba-2": Mixer(128, 8, 128, 64, False)}
"""As in Qwen3-Next, whose code repeats keys for the heads that share them, and as in Nemotron-H-8B."""
TAPS = 4


class States:
    """Pages of one layer's states and of its convolution's columns, dealt to rows in random order."""

    def __init__(self, rows: int, count: int, mixer: Mixer, is_captured: bool = False) -> None:
        self.mixer, self.tokens = mixer, rows * count
        ends = range(CAPTURE_TOKENS // 2 + 1, count, CAPTURE_TOKENS) if is_captured else ()
        pages = rows * (1 + len(ends))
        self.channels = 2 * mixer.key_heads * mixer.keys + mixer.heads * mixer.values
        size = mixer.heads * mixer.keys * mixer.values
        page = -(-(4 * size + 2 * (TAPS - 1) * self.channels) // 256) * 64
        self.arena = torch.empty(pages * page, device=DEVICE)
        for part in self.arena.split(1 << 28):
            part.view(torch.bfloat16).normal_(std=0.1)
        addresses = np.random.default_rng(0).permutation(pages).astype(np.int32) * (page // 64)
        each, counts = np.arange(rows), np.full(rows, count)
        captured = KindCaptures(np.repeat(each, len(ends)), np.tile(np.array(ends), rows), addresses[rows:, None])
        step = Step(0, each, counts, counts, counts > 0, each, np.zeros(rows * count, dtype=np.int32))
        table = TableView(addresses[:rows].reshape(rows, 1, 1), 0)
        self.rows = rows_of(step, table, DEVICE, captured if is_captured else None)
        places = (len(self.arena) - size) // 64 + 1
        tensor = self.arena.as_strided((places, 1, mixer.heads, size // mixer.heads),
                                       (64, size, size // mixer.heads, 1))  # fmt: skip
        self.matrices = Matrices(PartView(0, Cut(0, 4 * size), tensor, tensor), mixer.has_delta)
        offsets = torch.arange(self.channels, dtype=torch.int32, device=DEVICE) * (TAPS - 1) + 2 * size
        self.columns = Columns(self.arena.view(torch.bfloat16), offsets, 0, GRANULE)
        self.state_bytes = 4 * size * rows

    def recurrence(self) -> Callable[[], torch.Tensor]:
        mixer = self.mixer
        query, key = (random_numbers(self.tokens, mixer.key_heads, mixer.keys) / 8 for _ in range(2))
        decay, weight = -torch.rand(2, self.tokens, mixer.heads, device=DEVICE) / 8
        skip = None if mixer.has_delta else torch.ones(mixer.heads, device=DEVICE)
        value = random_numbers(self.tokens, mixer.heads, mixer.values)
        tokens = Recurrence(query, key, value, decay, -weight, 1.0, skip, mixer.has_delta, mixer.has_delta)
        return lambda: recur(self.rows, self.matrices, tokens)

    def convolution(self) -> Callable[[], torch.Tensor]:
        inputs = random_numbers(self.tokens, self.channels)
        weight = random_numbers(self.channels, TAPS)
        return lambda: convolve(self.rows, self.columns, inputs, weight, None, True)


def recurrent_table() -> list[dict[str, object]]:
    """Decode reads and writes a state for every row; prefill is counted in tokens, and timed with captures too."""
    table: list[dict[str, object]] = []
    for (name, mixer), (rows, count) in itertools.product(MIXERS.items(), RECURRENT):
        states = States(rows, count, mixer)
        took, convolving = microseconds(states.recurrence()), microseconds(states.convolution())
        captured = States(rows, count, mixer, is_captured=True) if count > CAPTURE_TOKENS else None
        table.append({
            "layer": name, "rows × new tokens": f"{rows} × {count:,}", "recurrence, µs": round(took, 1),
            "states read + written, TB/s": round(2 * states.state_bytes / took / 1e6, 2) if count == 1 else "",
            "M tokens/s": round(rows * count / took, 1), "convolution, µs": round(convolving, 1),
            "recurrence with captures, µs":
                "" if captured is None else round(microseconds(captured.recurrence()), 1),
            "convolution with captures, µs":
                "" if captured is None else round(microseconds(captured.convolution()), 1),
        })  # fmt: skip
    return table
