"""An engine in 80 lines on `quire.memory`: first come, first served, one pool, any mix of kinds.

It plans, admits what could run alone, decodes in lockstep, and when pages are short compacts, then sends the youngest
away: so everyone ends in any pool that the plan accepts. Replace `compute` by a model that writes K and V to the
addresses it is given, and `copy` by one that copies pages.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from quire.memory import Budget, Moves, Plan, Settings, StageMemory, admits, audit, compact, make_plan, read_model


def compute(memory: StageMemory, row: int, begin: int, end: int) -> int:
    """Where a model would run tokens [begin, end): it gets the addresses of the row's pages, and yields a token."""
    addresses = [memory.addresses(kind, row) for kind in range(len(memory.tables))]
    return sum(int(table.sum()) for table in addresses) + end - begin


def copy(memory: StageMemory, moves: list[Moves]) -> None:
    """Where the bytes of pages that moved would be copied: tables name their new places, where `compute` reads next."""


def serve(plan: Plan, lengths: list[tuple[int, int]]) -> dict[int, int]:
    """Runs requests of (prompt, outputs) tokens; returns how many tokens each one yielded."""
    memory = StageMemory(plan.stages[0], plan, rows=plan.max_requests)
    waiting = deque(i for i, (prompt, outputs) in enumerate(lengths) if admits(plan, prompt + outputs))
    running: dict[int, int] = {}  # request -> row, in the order of arrival
    settled = np.zeros(plan.max_requests, dtype=np.int64)
    yielded = dict.fromkeys(waiting, 0)
    free = list(range(plan.max_requests))
    while waiting or running:
        while waiting and free:
            running[waiting[0]] = free.pop()
            settled[running[waiting.popleft()]] = 0
        for request, row in list(running.items()):
            if request not in running:
                continue
            known = lengths[request][0] + yielded[request]
            new = min(known - int(settled[row]), plan.batch_tokens)
            while not grow(memory, row, int(settled[row]), new):
                if new > 1:
                    new = 1  # shrink the chunk before anyone is sent away
                else:
                    youngest = max(running)
                    if youngest == request:
                        break
                    memory.release(running[youngest])
                    free.append(running.pop(youngest))
                    waiting.appendleft(youngest)
            else:
                compute(memory, row, int(settled[row]), int(settled[row]) + new)
                settled[row] += new
                memory.settle(np.array([row]), settled[[row]])
                yielded[request] += int(settled[row] == known)
            if yielded[request] == lengths[request][1]:
                memory.release(row)
                free.append(running.pop(request))
        audit(memory, {row: str(request) for request, row in running.items()})
    return yielded


def grow(memory: StageMemory, row: int, settled: int, new: int) -> bool:
    rows = np.array([row])
    needs = memory.needs(rows, np.array([settled]), np.array([new]), np.array([0]))
    if not memory.fitting(rows, needs):
        copy(memory, compact(memory))
    if memory.fitting(rows, needs):
        memory.grow(needs)
        return True
    return False


if __name__ == "__main__":
    settings = Settings(max_requests=8, batch_tokens=512, max_length=4096)
    plan = make_plan(read_model("gemma-3-270m"), settings, Budget(pool_bytes=256 << 20)).require_fit()
    work = [(1500, 40), (700, 30), (3000, 20), (10, 60), (4096, 1)]
    yielded = serve(plan, work)
    for request, (prompt, outputs) in enumerate(work):
        ending = f"{yielded[request]} tokens" if request in yielded else f"refused: more than {plan.max_length} tokens"
        print(f"request {request}, prompt {prompt}, outputs {outputs}: {ending}")
