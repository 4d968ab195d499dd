"""Recurrent layers: transformers' own mixer, on states in pages.

    packed   [ new of row 0 | new of row 1 | row 2 | row 3 ]        rows with equal token counts run as one batch
    page     ├ matrix ┼ columns of the convolution ┤                read before, written back after

Rows with drafts compute those token by token and keep the state after each: verification selects one. Rows with
captures stop after each captured token, and also write the state to the capture's page.

A mixer reads the state from its cache and writes the next one to it; here that cache is a `RowStates`. A cleared page
is the state before the first token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from quire.worker.backends.batch import StateGroup
from quire.worker.mixers.context import ForwardContext
from quire.worker.mixers.packed import BLOCKS, bind_names, cache_name
from quire.worker.pages.arena import PartView

UNLIMITED = (0.0, float("inf"))
"""Time steps without a limit."""


@dataclass(frozen=True, slots=True)
class Form:
    """What one class of mixers keeps, and how it runs."""

    matrix: Callable[[Any], tuple[int, ...]] = lambda _module: ()
    """The shape of one head's part of the recurrent matrix."""
    goes_on: bool = True
    """Whether several tokens at once may start from a state; otherwise tokens are computed one by one."""


class RowStates:
    """The states of some rows, as a cache of transformers."""

    def __init__(self, columns: torch.Tensor, matrix: torch.Tensor | None) -> None:
        self.columns = columns
        """(row, channel, column): what the convolution still needs, one column fewer than its kernel."""
        self.matrix = matrix

    def get_conv_state(self, *_layer: int, **_options: int) -> torch.Tensor:
        return self.columns

    def get_recurrent_state(self, *_layer: int, **_options: int) -> torch.Tensor | None:
        return self.matrix

    def is_recording_past(self, _layer: int) -> bool:
        return False

    def update_conv_state(self, new: torch.Tensor, *_layer: int, **_options: int) -> torch.Tensor:
        seen = torch.cat([self.columns.to(new.dtype), new], dim=-1)
        self.columns = seen[..., seen.shape[-1] - self.columns.shape[-1] :]
        return seen

    def update_recurrent_state(self, new: torch.Tensor, *_layer: int, **_options: int) -> torch.Tensor:
        self.matrix = new
        return new


def _clamped_forward(mixer: Any, limit: tuple[float, float]) -> Callable[..., torch.Tensor]:
    """Mamba-2's forward with clamped time steps. transformers clamps them only where several tokens run at once: a
    row's results would depend on how it is cut."""
    forward = inspect.unwrap(mixer.forward)
    update = forward.__globals__.get("mamba2_selective_state_update")
    if update is None or limit == UNLIMITED:
        return mixer.forward  # type: ignore[no-any-return]

    def clamp_and_update(
        state: Any, tokens: Any, dt: torch.Tensor, *rest: Any, dt_bias: torch.Tensor, dt_softplus: bool, **more: Any
    ) -> torch.Tensor:
        assert dt_softplus, "time steps are made positive before they are clamped"
        times = functional.softplus(dt + dt_bias.to(dt.dtype)).clamp(*limit)
        out: torch.Tensor = update(state, tokens, times, *rest, **more)
        return out

    return bind_names(forward, {"mamba2_selective_state_update": clamp_and_update})


class StateMixer:
    """Replaces a mixer's forward: cuts the packed batch into rows, and reads and writes their states."""

    def __init__(self, module: Any, context: ForwardContext, form: Form) -> None:
        limit = tuple(getattr(module, "time_step_limit", UNLIMITED))
        self.forward = partial(_clamped_forward(type(module), limit), module)
        self.context = context
        self.form = form
        parts = context.arena.layers[module.layer_idx]
        self.convolutions = {name: part for name, part in parts.items() if name.startswith("conv")}
        names = parts.keys() - self.convolutions.keys() - {"key", "value"}
        self.recurrent = parts[names.pop()] if names else None
        self.kind = next(iter(self.convolutions.values())).kind
        self.column_count: int = module.conv_kernel_size - 1
        self.matrix_shape = form.matrix(module)
        self.cache_name = cache_name(self.forward)

    def __call__(self, hidden_states: torch.Tensor, **_options: Any) -> torch.Tensor:
        out = torch.empty_like(hidden_states)
        for group in self.context.running().kinds[self.kind].state_groups:
            states, begin = self._read(group, hidden_states.dtype), 0
            for end, pages in group.writes:
                if end > begin:  # otherwise the same state goes to another page
                    queries = group.queries[:, begin:end]
                    out[0, queries] = self._run(hidden_states[0, queries], states)
                self._write(pages, states)
                begin = end
        return out

    def _run(self, rows: torch.Tensor, states: RowStates) -> torch.Tensor:
        """(row, token, width) in and out."""
        pieces = [rows] if self.form.goes_on else torch.split(rows, 1, dim=1)
        return torch.cat([self.forward(piece, **{self.cache_name: states}) for piece in pieces], dim=1)

    def _read(self, group: StateGroup, dtype: torch.dtype) -> RowStates:
        columns = [self._unfold(name, read_rows(part, group.pages)) for name, part in self.convolutions.items()]
        matrix = None
        if self.recurrent is not None:
            kept = read_rows(self.recurrent, group.pages)
            matrix = kept.view(*kept.shape[:2], *self.matrix_shape)
        return RowStates(torch.cat(columns, dim=1).to(dtype), matrix)

    def _unfold(self, name: str, kept: torch.Tensor) -> torch.Tensor:
        """(row, head, number) of a part to (row, channel, column) of the convolution."""
        blocks = kept.view(*kept.shape[:2], BLOCKS.get(name, 1), -1, self.column_count)
        return blocks.transpose(1, 2).reshape(len(kept), -1, self.column_count)

    def _write(self, pages: torch.Tensor, states: RowStates) -> None:
        begin = 0
        for name, part in self.convolutions.items():
            heads, width = part.tensor.shape[2:]
            count = heads * width // self.column_count
            channels = states.columns[:, begin : begin + count]
            blocks = channels.reshape(len(channels), BLOCKS.get(name, 1), heads, -1, self.column_count)
            keep_rows(part, pages, blocks.transpose(1, 2))
            begin += count
        if self.recurrent is not None and states.matrix is not None:
            keep_rows(self.recurrent, pages, states.matrix)


def read_rows(part: PartView, pages: torch.Tensor) -> torch.Tensor:
    """(row, head, number) of pages (group, row), a copy."""
    return part.pages(pages[part.group])[:, 0]


def keep_rows(part: PartView, pages: torch.Tensor, values: torch.Tensor) -> None:
    kept = values.reshape(len(values), *part.tensor.shape[2:]).to(part.tensor.dtype)
    part.tensor[pages[part.group], 0] = kept
