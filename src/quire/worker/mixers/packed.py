"""Recurrent layers on a backend that computes states: transformers' mixer runs once for all rows, packed.

A mixer calls functions of its module for its convolution and its recurrence. Those names are bound to functions that
read each row's state from its page; the cache that the mixer sees is empty.
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional

from quire.core.errors import ModelError
from quire.plan.layout import GRANULE_BYTES
from quire.worker.backends.recurrent import Columns, Matrices, Recurrence, Recurrent
from quire.worker.mixers.context import ForwardContext
from quire.worker.pages.arena import Arena, PartView

BLOCKS = {"conv_qk": 2, "conv_bc": 2}
"""Parts that keep two inputs of each head together; the convolution has all heads of one before those of the other."""
ACTIVATIONS = {None: False, "silu": True, "swish": True}


def bind_names(forward: Any, names: dict[str, Any]) -> FunctionType:
    """The same function, with these names bound to other functions."""
    found = forward.__globals__ | names
    made = FunctionType(forward.__code__, found, forward.__name__, forward.__defaults__, forward.__closure__)
    made.__kwdefaults__ = forward.__kwdefaults__
    return made


def cache_name(forward: Any) -> str:
    """The name of the option that gives a mixer its cache."""
    return "cache_params" if "cache_params" in inspect.signature(forward).parameters else "past_key_values"


class NoStates:
    """The empty cache that a mixer sees."""

    def get_conv_state(self, *_layer: int, **_options: int) -> None:
        return None

    def get_recurrent_state(self, *_layer: int, **_options: int) -> None:
        return None

    def is_recording_past(self, _layer: int) -> bool:
        return False

    def update_conv_state(self, new: torch.Tensor, *_layer: int, **_options: int) -> torch.Tensor:
        return new

    def update_recurrent_state(self, new: torch.Tensor, *_layer: int, **_options: int) -> torch.Tensor:
        return new


class PackedMixer:
    """Replaces a mixer's forward."""

    def __init__(self, module: Any, context: ForwardContext, backend: Recurrent) -> None:
        self.context = context
        self.backend = backend
        parts = {name: part for name, part in context.arena.layers[module.layer_idx].items() if name not in _TOKENS}
        convolutions = [name for name in parts if name.startswith("conv")]
        self.kind = next(iter(parts.values())).kind
        self.columns = columns_of(
            context.arena, {name: parts[name] for name in convolutions}, module.conv_kernel_size - 1
        )
        self.recurrent = next((part for name, part in parts.items() if name not in convolutions), None)
        self.module = module
        self.forward = self._forward_of(type(module))
        self.cache_name = cache_name(self.forward)

    def __call__(self, hidden_states: torch.Tensor, **_options: Any) -> torch.Tensor:
        out: torch.Tensor = self.forward(self.module, hidden_states, **{self.cache_name: NoStates()})
        return out

    def _forward_of(self, mixer: Any) -> FunctionType:
        """The mixer's own forward, which calls our functions by their names."""
        ours: dict[str, Any] = {
            "torch_chunk_gated_delta_rule": self._delta,
            "chunk_kimi_delta_attention": self._delta,
            "mamba2_chunk_scan": self._scan,
        }
        forward = inspect.unwrap(mixer.forward)
        called = [name for name in ours if name in forward.__code__.co_names]
        wanted = 0 if self.recurrent is None else 1
        if "causal_conv1d_fn" not in forward.__code__.co_names or len(called) != wanted:
            raise ModelError(f"{mixer.__name__} of this transformers calls {called or 'nothing'} that is known here")
        return bind_names(forward, {"causal_conv1d_fn": self._convolve} | {name: ours[name] for name in called})

    def _convolve(
        self,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **_options: Any,
    ) -> torch.Tensor:
        """(1, channel, token) in and out."""
        step, inputs = self.context.running().kinds[self.kind], hidden_states[0].transpose(0, 1)
        out = self.backend.convolve(step, self.columns, inputs, weight, bias, ACTIVATIONS[activation])
        return out.transpose(0, 1)[None]

    def _delta(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        g: torch.Tensor,
        beta: torch.Tensor,
        use_qk_l2norm_in_kernel: bool,
        **_options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(1, token, head, width) in and out; the second result is a state that is never read."""
        tokens = Recurrence(
            query[0], key[0], value[0], g[0].contiguous(), beta[0].contiguous(), key.shape[-1] ** -0.5, None,
            has_delta=True, is_normalised=use_qk_l2norm_in_kernel,
        )  # fmt: skip
        return self._recur(tokens, keys_first=True), value

    def _scan(
        self,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,  # noqa: N803
        B: torch.Tensor,  # noqa: N803
        C: torch.Tensor,  # noqa: N803
        *,
        D: torch.Tensor,  # noqa: N803
        dt_bias: torch.Tensor,
        dt_limit: tuple[float, float],
        **_options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As above. B and C are called keys and queries elsewhere."""
        time = functional.softplus(dt[0].float() + dt_bias.float()).clamp(*dt_limit)
        tokens = Recurrence(
            C[0], B[0], hidden_states[0], time * A.float(), time, 1.0, D, has_delta=False, is_normalised=False
        )
        return self._recur(tokens, keys_first=False), hidden_states

    def _recur(self, tokens: Recurrence, keys_first: bool) -> torch.Tensor:
        assert self.recurrent is not None, "the layer keeps a matrix"
        step = self.context.running().kinds[self.kind]
        return self.backend.recur(step, Matrices(self.recurrent, keys_first), tokens)[None]


_TOKENS = frozenset({"key", "value"})


def columns_of(arena: Arena, parts: dict[str, PartView], column_count: int) -> Columns:
    """All parts of a layer's convolution, in the order of its channels."""
    offsets = [_offsets(name, part, column_count) for name, part in parts.items()]
    one = next(iter(parts.values()))
    dtype = one.tensor.dtype
    numbers = torch.cat(offsets).to(torch.int32).to(arena.bytes.device)
    return Columns(arena.bytes.view(dtype), numbers, one.group, GRANULE_BYTES // dtype.itemsize)


def _offsets(name: str, part: PartView, column_count: int) -> torch.Tensor:
    heads, width = part.tensor.shape[2:]
    numbers = torch.arange(heads * width).view(heads, BLOCKS.get(name, 1), -1, column_count)[..., 0]
    return numbers.transpose(0, 1).reshape(-1) + int(part.tensor.storage_offset())
