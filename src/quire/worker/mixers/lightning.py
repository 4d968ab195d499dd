"""MiniMax's lightning attention: a matrix for each head that fades with every token, by the head's own rate.

transformers' own code continues from a matrix token by token. Here tokens are computed in blocks:

    inter    what the tokens of a block read from the matrix before it, faded by their place in the block
    intra    what they read from each other, faded by distance
"""

from __future__ import annotations

from typing import Any

import torch

from quire.worker.mixers.context import ForwardContext
from quire.worker.mixers.states import keep_rows, read_rows

BLOCK_TOKENS = 64


class LightningMixer:
    """Replaces a layer's forward: cuts the packed batch into rows, and reads and writes their matrices."""

    def __init__(self, module: Any, context: ForwardContext) -> None:
        self.module, self.context = module, context
        self.part = context.arena.layers[module.layer_idx]["linear"]

    def __call__(self, hidden_states: torch.Tensor, **_options: Any) -> torch.Tensor:
        out = torch.empty_like(hidden_states)
        width = self.module.head_dim
        for group in self.context.running().kinds[self.part.kind].state_groups:
            kept, begin = read_rows(self.part, group.pages), 0
            matrix = kept.view(*kept.shape[:2], width, width).float()
            for end, pages in group.writes:
                if end > begin:  # otherwise the same matrix goes to another page
                    queries = group.queries[:, begin:end]
                    out[0, queries], matrix = mix(self.module, hidden_states[0, queries], matrix)
                keep_rows(self.part, pages, matrix)
                begin = end
        return out


def mix_alone(module: Any, rows: torch.Tensor, _positions: torch.Tensor) -> torch.Tensor:
    """(row, token, width) in and out, after tokens that left nothing."""
    heads, width = module.num_attention_heads, module.head_dim
    return mix(module, rows, rows.new_zeros(len(rows), heads, width, width, dtype=torch.float32))[0]


def kept_numbers(module: Any) -> tuple[int, int]:
    """Of a row: none for a convolution, and its matrices."""
    return 0, module.qkv_proj.out_features // 3 * module.head_dim


def mix(module: Any, rows: torch.Tensor, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(row, token, width) in and out, and the matrices (row, head, width, width) after the last token."""
    projected = module.act_fn(module.qkv_proj(rows)).unflatten(2, (module.num_attention_heads, -1))
    blocks, found = projected.float().transpose(1, 2).split(BLOCK_TOKENS, dim=2), []
    for block in blocks:
        query, key, value = block.chunk(3, dim=3)
        one, matrix = _mix_block(query, key, value, matrix, module.slope_rate.float())
        found.append(one)
    mixed = torch.cat(found, dim=2).transpose(1, 2).flatten(2).to(rows.dtype)
    gated = torch.sigmoid(module.output_gate(rows)) * module.norm(mixed)
    out: torch.Tensor = module.out_proj(gated)
    return out, matrix


def _mix_block(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, matrix: torch.Tensor, rate: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(row, head, token, width) of one block; `rate` is (head, 1, 1)."""
    place = torch.arange(1, query.shape[2] + 1, device=query.device)[:, None]
    distance = place - place.T
    faded = torch.exp(-rate * distance).masked_fill(distance < 0, 0.0)
    inter = (query * torch.exp(-rate * place)) @ matrix
    intra = (query @ key.transpose(2, 3) * faded) @ value
    last = query.shape[2]
    matrix = matrix * torch.exp(-rate * last) + (key * torch.exp(-rate * (last - place))).transpose(2, 3) @ value
    return inter + intra, matrix
