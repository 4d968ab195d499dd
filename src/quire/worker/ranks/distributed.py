"""`Collective` and `Line` over torch.distributed: gloo on CPUs, NCCL on GPUs. NCCL's calls may be recorded in CUDA
graphs: they wait for nothing, and use the current stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import torch
from torch import distributed

from quire.worker.model.collective import ALONE, NO_LINE, Collective, Line
from quire.worker.ranks.share import Share


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """`Collective` of one stage's ranks."""

    group: distributed.ProcessGroup
    rank: int
    ranks: int

    def add(self, tensor: torch.Tensor) -> None:
        distributed.all_reduce(tensor, group=self.group)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every rank receives all parts where the backend is NCCL, which has no gather that can be recorded."""
        own = tensor.contiguous()
        if distributed.get_backend(self.group) == "nccl":
            parts = own.new_empty(self.ranks, *own.shape)
            distributed.all_gather_into_tensor(parts, own, group=self.group)
            return torch.cat(tuple(parts), dim=-1) if self.rank == 0 else tensor
        found = [torch.empty_like(own) for _ in range(self.ranks)] if self.rank == 0 else None
        distributed.gather(own, found, group=self.group, group_dst=0)
        return tensor if found is None else torch.cat(found, dim=-1)

    def broadcast(self, tensor: torch.Tensor) -> None:
        distributed.broadcast(tensor, group=self.group, group_src=0)


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """`Line` of one rank."""

    group: distributed.ProcessGroup
    _sent: deque[tuple[torch.Tensor, distributed.Work | None]] = field(default_factory=deque)
    """What the other stage may not have taken yet."""

    def send(self, tensor: torch.Tensor, stage: int) -> None:
        """gloo's tensors wait here until the other stage asks for them: as many as there are stages, so that one stage
        is not held up by another that is a few steps behind."""
        if tensor.device.type != "cpu":
            distributed.send(tensor, group=self.group, group_dst=stage)
            return
        copy = tensor.clone()
        self._sent.append((copy, distributed.isend(copy, group=self.group, group_dst=stage)))
        while len(self._sent) > self.group.size():
            _wait(self._sent.popleft()[1])

    def receive(self, tensor: torch.Tensor, stage: int) -> None:
        distributed.recv(tensor, group=self.group, group_src=stage)

    def expect(self, tensor: torch.Tensor, stage: int) -> Callable[[], object]:
        return partial(_wait, distributed.irecv(tensor, group=self.group, group_src=stage))


def _wait(work: distributed.Work | None) -> None:
    assert work is not None, "this process is one of the group"
    work.wait()


def join_group(share: Share, device: torch.device, timeout_seconds: float) -> tuple[Collective, Line]:
    """What the process of a share does with the others. torch.distributed is initialised before, with a process for
    each share in the plan's order. Every process calls this once."""
    backend, timeout = "gloo" if device.type == "cpu" else "nccl", timedelta(seconds=timeout_seconds)
    collective, line = ALONE, NO_LINE
    for stage in range(share.stages if share.ranks > 1 else 0):
        members = [stage * share.ranks + rank for rank in range(share.ranks)]
        group = distributed.new_group(members, timeout=timeout, backend=backend)
        if stage == share.stage:
            collective = Ranks(group, share.rank, share.ranks)
    for rank in range(share.ranks if share.stages > 1 else 0):
        members = [stage * share.ranks + rank for stage in range(share.stages)]
        group = distributed.new_group(members, timeout=timeout, backend=backend)
        if rank == share.rank:
            line = Stages(group)
    return collective, line
