"""One process's share of a model: its modules, connected to the others, and what each parameter is cut from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from quire.worker.ranks.member import Member
from quire.worker.ranks.skeleton import skeletons
from quire.worker.ranks.stages import keep_stage
from quire.worker.ranks.table import SplitTable, split_table
from quire.worker.ranks.wiring import connect


@dataclass(frozen=True, slots=True, eq=False)
class SharedModel:
    model: Any
    """Its parameters lie on the meta device until they are filled in."""
    whole: Any
    """The same without memory and undivided: what a checkpoint has."""
    table: SplitTable
    rank: int

    def layer_bytes(self) -> int:
        """Of all parameters but those of embeddings and the head."""
        ends = {path for path, module in self.model.named_modules() if isinstance(module, nn.Embedding)}
        ends.add(self.table.head)
        named = self.model.named_parameters()
        return sum(one.nbytes for name, one in named if name.rpartition(".")[0] not in ends)

    def tensors(self) -> list[tuple[str, ...]]:
        """Parameters and stored buffers to be filled in, each with all its names in the whole model: several, if it is
        tied. The first is one that this process has."""
        own = self.model.state_dict(keep_vars=True).keys()
        found: dict[int, list[str]] = {}
        for name, tensor in self.whole.state_dict(keep_vars=True).items():
            found.setdefault(id(tensor), []).append(name)
        each = (sorted(names, key=lambda name: name not in own) for names in found.values())
        return [tuple(names) for names in each if names[0] in own]

    def fill(self, names: Sequence[str], whole: Any) -> None:
        """Cuts this rank's part of a whole tensor, and puts it in its place."""
        self.put(names, self.table.part(names[0], whole, self.rank))

    def put(
        self, names: Sequence[str], part: torch.Tensor, device: torch.device | None = None, dtype: Any = None
    ) -> None:
        """Gives a parameter or buffer its numbers, on a device and in a data type: by default the parameter's."""
        module, own = self._place(names[0])
        if own in module._buffers:
            module._buffers[own] = part.to(module._buffers[own].dtype)
            return
        held = part.to(device=device, dtype=dtype or module._parameters[own].dtype)
        parameter = nn.Parameter(held, requires_grad=False)
        known = self.model.state_dict(keep_vars=True) if len(names) > 1 else ()
        for name in (names[0], *(name for name in names[1:] if name in known)):
            module, own = self._place(name)
            module._parameters[own] = parameter

    def _place(self, name: str) -> tuple[Any, str]:
        path, _, own = name.rpartition(".")
        return self.model.get_submodule(path), own

    def fill_buffers(self) -> None:
        """Those that are computed: numbers of this rank's heads, not of the model's first ones."""
        values = dict(self.whole.named_buffers(remove_duplicate=False))
        for name, _ in list(self.model.named_buffers(remove_duplicate=False)):
            if name in values and name in self.table.cuts:
                self.fill([name], values[name])


def share_model(
    config: Any, member: Member, layers: range, dtype: torch.dtype, layer_outputs: int | None = None
) -> SharedModel:
    """`layers`: of the member's stage. `layer_outputs`: how many results layers return as a tuple; None: one tensor."""
    share = member.share
    whole, local = skeletons(config, share.ranks, dtype)
    table = split_table(whole, local, share.rank, share.ranks)
    connect(local, table, member.collective)
    if share.stages > 1:
        keep_stage(local, table, layers, member, layer_outputs)
    made = SharedModel(local.eval(), whole, table, share.rank)
    made.fill_buffers()
    local.quire_share, local.quire_config = share, config
    return made
