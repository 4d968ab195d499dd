"""`Collective` and `Line` between threads of one process: for the proof of a split, and for tests.

A thread that raises breaks the group: the others raise instead of waiting for it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

from quire.worker.model.collective import Collective, Line
from quire.worker.ranks.share import Share

WAIT_SECONDS = 60.0
"""After which a thread that waits for another gives up."""
Found = TypeVar("Found")


class Meeting:
    """Where the threads of one stage exchange tensors."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=WAIT_SECONDS)
        self._given: list[torch.Tensor] = [torch.empty(0)] * ranks
        self.calls = 0
        """Of each rank."""

    def exchange(self, rank: int, tensor: torch.Tensor, use: Callable[[list[torch.Tensor]], Found]) -> Found:
        """Calls `use` with what all ranks gave; nobody changes it before all have used it."""
        self._given[rank] = tensor
        self._barrier.wait()
        self.calls += rank == 0
        found = use(self._given)
        self._barrier.wait()
        return found

    def leave(self) -> None:
        self._barrier.abort()


class ThreadRank:
    """`Collective` of one thread."""

    def __init__(self, meeting: Meeting, rank: int, ranks: int) -> None:
        self._meeting, self.rank, self.ranks = meeting, rank, ranks

    def add(self, tensor: torch.Tensor) -> None:
        assert tensor.is_contiguous(), "ranks add contiguous tensors"
        total = self._meeting.exchange(self.rank, tensor, lambda given: torch.stack(given).sum(0))
        tensor.copy_(total)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        joined = self._meeting.exchange(self.rank, tensor, lambda given: torch.cat(given, dim=-1))
        return joined if self.rank == 0 else tensor

    def broadcast(self, tensor: torch.Tensor) -> None:
        tensor.copy_(self._meeting.exchange(self.rank, tensor, lambda given: given[0].clone()))


class ThreadLine:
    """`Line` of one thread."""

    def __init__(self, queues: dict[tuple[int, int], queue.Queue[torch.Tensor]], stage: int) -> None:
        self._queues, self._stage = queues, stage

    def send(self, tensor: torch.Tensor, stage: int) -> None:
        self._queues[self._stage, stage].put(tensor.clone())

    def receive(self, tensor: torch.Tensor, stage: int) -> None:
        tensor.copy_(self._queues[stage, self._stage].get(timeout=WAIT_SECONDS))

    def expect(self, tensor: torch.Tensor, stage: int) -> Callable[[], object]:
        return partial(self.receive, tensor, stage)


class ThreadGroup:
    """The ports of all shares of a model, for a thread each."""

    def __init__(self, ranks: int, stages: int) -> None:
        self.shares = tuple(Share(rank, ranks, stage, stages) for stage in range(stages) for rank in range(ranks))
        self.meetings = [Meeting(ranks) for _ in range(stages)]
        self._queues: list[dict[tuple[int, int], queue.Queue[torch.Tensor]]] = [
            {(here, there): queue.Queue() for here in range(stages) for there in range(stages)} for _ in range(ranks)
        ]

    def ports(self, share: Share) -> tuple[Collective, Line]:
        rank = ThreadRank(self.meetings[share.stage], share.rank, share.ranks)
        return rank, ThreadLine(self._queues[share.rank], share.stage)

    def run(self, work: Callable[[Share], Found]) -> list[Found]:
        """Calls `work` in a thread for each share. Raises the first error that is not another's doing."""

        def guarded(share: Share) -> Found:
            try:
                return work(share)
            except BaseException:
                for meeting in self.meetings:
                    meeting.leave()
                raise

        with ThreadPoolExecutor(len(self.shares)) as pool:
            futures = [pool.submit(guarded, share) for share in self.shares]
        errors = [future.exception() for future in futures]
        found = first_cause([error for error in errors if error is not None])
        if found is not None:
            raise found
        return [future.result() for future in futures]


def first_cause(errors: Sequence[BaseException]) -> BaseException | None:
    """Errors of threads that only waited for another come last."""
    waited = (threading.BrokenBarrierError, queue.Empty)
    return min(errors, key=lambda error: isinstance(error, waited), default=None)
