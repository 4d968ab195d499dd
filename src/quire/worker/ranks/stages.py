"""A stage's share of a model: foreign layers pass on what they are given, hidden states arrive and leave at the edges.

    stage 0   embedding ─▶ own layers ─▶ send │ foreign layers … no logits
    stage 1   zeros ─▶ foreign layers │ receive ─▶ own layers ─▶ norm, head ─▶ logits

The model's own code still counts all its layers, so masks, rotary embeddings and kinds are found by the same numbers.
The runner sends logits to stage 0, where tokens are drawn.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from quire.core.errors import ModelError
from quire.worker.ranks.member import Member
from quire.worker.ranks.table import SplitTable


class ForeignLayer(nn.Module):
    """In the place of a layer of another stage."""

    def __init__(self, layer: nn.Module, outputs: int | None) -> None:
        """Models read what a layer says of itself. `outputs`: how many results layers return, as a tuple; None: the
        hidden states alone."""
        super().__init__()
        said = {name: value for name, value in vars(layer).items() if isinstance(value, str | int | None)}
        self.__dict__.update({name: value for name, value in said.items() if name not in self.__dict__})
        self.__dict__.pop("layer_idx", None)  # it keeps nothing
        self.quire_outputs = outputs

    def forward(self, hidden_states: torch.Tensor, *_given: Any, **_named: Any) -> Any:
        outputs = self.quire_outputs
        return hidden_states if outputs is None else (hidden_states, *[None] * (outputs - 1))


class NoEmbedding(nn.Module):
    """Hidden states of the right shape, which others replace."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.empty(0, width, dtype=dtype), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.weight.new_zeros(*tokens.shape, self.weight.shape[1])


class NoHead(nn.Module):
    """The last stage has the logits."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.empty(0, dtype=dtype), persistent=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states[..., :0]


def keep_stage(model: Any, table: SplitTable, layers: range, member: Member, outputs: int | None) -> None:
    """Removes what other stages have, and connects the edges. Called before the model gets memory, once ranks are
    connected: results are whole before they are sent. `layers`: the stage's own."""
    share, every = member.share, layers_of(model)
    for place in set(range(len(every))) - set(layers):
        every[place] = ForeignLayer(every[place], outputs)
    if share.stage:
        embedding = model.get_submodule(table.embedding)
        _replace(model, table.embedding, NoEmbedding(embedding.embedding_dim, embedding.weight.dtype))
        _receive_before(every, layers.start, member)
    if not share.is_last:
        head = model.get_submodule(table.head)
        _replace(model, table.head, NoHead(head.weight.dtype))
        _send_after(every, max(layers.start, layers.stop - 1), member)


def layers_of(model: Any) -> nn.ModuleList:
    """The decoder's layers, in order."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    if not lists:
        raise ModelError(f"{type(model).__name__} has no list of {count} layers that stages could divide: choose "
                         "--pipeline-parallel 1")  # fmt: skip
    return lists[0]


def _replace(model: Any, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _receive_before(layers: nn.ModuleList, first: int, member: Member) -> None:
    """Before a stage's first layer, or after all, where it has none and the last of the model is another's."""
    if first < len(layers):
        layers[first].register_forward_pre_hook(partial(_receive, member), with_kwargs=True)
    else:
        layers[-1].register_forward_hook(partial(_receive_result, member))


def _send_after(layers: nn.ModuleList, last: int, member: Member) -> None:
    layers[min(last, len(layers) - 1)].register_forward_hook(partial(_send, member))


def _receive(member: Member, _module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    hidden = _received(member, given[0] if given else named["hidden_states"])
    return ((hidden, *given[1:]), named) if given else (given, {**named, "hidden_states": hidden})


def _receive_result(member: Member, _module: Any, _given: Any, found: Any) -> Any:
    return (_received(member, found[0]), *found[1:]) if isinstance(found, tuple) else _received(member, found)


def _received(member: Member, like: torch.Tensor) -> torch.Tensor:
    hidden = torch.empty_like(like, memory_format=torch.contiguous_format)
    member.line.receive(hidden, member.share.stage - 1)
    return hidden


def _send(member: Member, _module: Any, _given: Any, found: Any) -> None:
    hidden = found[0] if isinstance(found, tuple) else found
    member.line.send(hidden.contiguous(), member.share.stage + 1)
