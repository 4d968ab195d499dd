"""A recording of an engine behind a stack of tiers that loads, preempts, loses loads and is cancelled at random."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import numpy as np

from quire.core.events import Event
from quire.core.request import Request
from quire.core.rules import Rules
from quire.plan.records import Records
from quire.recording.recorder import RecordingEngine
from quire.tiers.stack import Stack
from scenes_of_tiers import LAYOUT, Bytes, CheckingRunner, Drawer, small_plan


def record(path: Path, names: list[str], sheets: int) -> list[Event]:
    plan, random, told = small_plan(names, sheets), Random(2), list[Event]()
    records = Records(plan)
    memory = Bytes(60, records.block_bytes)
    stack = Stack(records, memory, [Drawer(Random(5))], LAYOUT)
    runner = CheckingRunner(plan, stack, memory)
    with path.open("w") as file:
        engine = RecordingEngine(
            file,
            plan,
            runner,
            tier=stack,
            keeper=stack,
            clock=time.monotonic,
            rules=Rules(load_seconds=5.0),
            listeners=[told.append],
        )
        for number in range(60):
            talk = 1000 * random.randrange(6) + np.arange(random.randint(20, 80))
            prompt = np.concatenate([talk, 50_000 + number + np.arange(random.randint(1, 20))])
            engine.submit(Request(f"r{number}", prompt.astype(np.int32), random.randint(1, 40)))
            for _ in range(random.randint(1, 12)):
                engine.step()
            if random.random() < 0.2 and engine.streams:
                engine.cancel(random.choice(list(engine.streams)))
        engine.drain()
    stack.close()
    return told
