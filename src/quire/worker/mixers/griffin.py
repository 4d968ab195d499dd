"""RecurrentGemma's recurrent block: a short convolution, then a vector that every token fades and adds to (RG-LRU).

transformers' block keeps both in itself and begins its convolution anew in every call of several tokens. Here they are
read from pages and written back; the recurrence is transformers' own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from quire.worker.mixers.context import ForwardContext
from quire.worker.mixers.states import keep_rows, read_rows


class GriffinMixer:
    """Replaces a block's forward: cuts the packed batch into rows, and reads and writes their states."""

    def __init__(self, module: Any, context: ForwardContext) -> None:
        self.module, self.context = module, context
        parts = context.arena.layers[module.layer_idx]
        self.vector, self.columns = parts["lru"], parts["conv"]

    def __call__(self, hidden_states: torch.Tensor, **_options: Any) -> torch.Tensor:
        out, step = torch.empty_like(hidden_states), self.context.running()
        for group in step.kinds[self.vector.kind].state_groups:
            vector = read_rows(self.vector, group.pages).flatten(1)
            columns, begin = read_rows(self.columns, group.pages).to(hidden_states.dtype), 0
            for end, pages in group.writes:
                if end > begin:  # otherwise the same state goes to another page
                    queries = group.queries[:, begin:end]
                    given = (hidden_states[0, queries], step.positions[queries], vector, columns)
                    out[0, queries], vector, columns = mix(self.module, *given)
                keep_rows(self.vector, pages, vector)
                keep_rows(self.columns, pages, columns)
                begin = end
        return out


def mix_alone(module: Any, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """(row, token, width) in and out, after tokens that left nothing."""
    vector = rows.new_zeros(len(rows), module.lru_width, dtype=torch.float32)
    columns = rows.new_zeros(len(rows), module.lru_width, module.conv1d_width - 1)
    return mix(module, rows, positions, vector, columns)[0]


def kept_numbers(module: Any) -> tuple[int, int]:
    """Of a row: for its convolution, and its vector."""
    channels = module.conv_1d.out_channels
    return channels * (module.conv1d_width - 1), channels


def mix(
    module: Any, rows: torch.Tensor, positions: torch.Tensor, vector: torch.Tensor, columns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(row, token, width) in and out; vectors (row, width) and columns (row, width, column) after the last token."""
    seen = torch.cat([columns, module.linear_x(rows).transpose(1, 2)], dim=-1)
    convolution = module.conv_1d
    inputs = functional.conv1d(seen, convolution.weight, convolution.bias, groups=seen.shape[1]).transpose(1, 2)
    module.rg_lru.recurrent_states = vector
    mixed = module.rg_lru(inputs, positions)
    vector, module.rg_lru.recurrent_states = module.rg_lru.recurrent_states, None
    out: torch.Tensor = module.linear_out(mixed * module.act_fn(module.linear_y(rows)))
    return out, vector, seen[..., seen.shape[-1] - columns.shape[-1] :]
