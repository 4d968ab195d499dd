"""Messages to ranks: bytes of a step, time to write and read it, and to bring it to another process and back.

    python bench/messages.py [--rounds 200]

256 rows decode on a plan for requests of 131,072 tokens. Tables are filled at random, so addresses follow no rule, as
in a pool that has been in use for long. A step that all rows need a page for is the greatest of decode steps. Of each
figure the median of the rounds; the way to another process is a socket, there and back.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from socket import socketpair

import numpy as np

from quire.cache.tables import Table
from quire.core.step import SAMPLED, Ints, Step
from quire.models.read import read_model
from quire.options.child import python
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.ranks.channel import Channel, Kind
from quire.ranks.message import RankStep, decode, encode
from quire.ranks.tables import TableLog, empty_tables

MODELS = ("llama-3.1-8b", "gemma-3-27b", "qwen3-next-80b-a3b")
LENGTH, ROWS, DRAFTS, PROMPT, PAGES = 131_072, 256, 4, 8192, 1 << 20
ECHO = """
import socket, sys
from quire.ranks.channel import Channel, Kind
channel = Channel(socket.socket(fileno=int(sys.argv[1])))
try:
    while True:
        channel.send_done(len(channel.receive_one().data))
except EOFError:
    pass
"""


class Work:
    """Steps of 256 rows at random places, on tables that change as a scheduler's do."""

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        addresses = self.random.permutation(PAGES).astype(np.int32) << 8
        kept = [stage.kinds for stage in plan.stages if stage.kinds]
        stages = [[Table(kind, plan, ROWS, addresses) for kind in kinds] for kinds in kept]
        self.tables = [table for stage in stages for table in stage]
        self.views = tuple(tuple(table.view for table in stage) for stage in stages)
        self.logs, self.followed = [TableLog(table) for table in self.tables], empty_tables(plan)
        self.rows, self.number = np.arange(ROWS), 0
        self.starts = self.random.integers(1000, LENGTH - PROMPT, ROWS)

    def give(self, rows: Ints, logical: Callable[[Table], Ints]) -> None:
        """New pages of each kind that keeps tokens, for each of these logical pages of each row."""
        for table in self.tables:
            if table.kind.holds_tokens:
                columns = table.column(logical(table))
                owner = np.repeat(rows, len(columns) // len(rows))
                table.write(owner, columns, self.random.integers(0, PAGES, (len(owner), table.plan.groups)))

    def decode_step(self, pages: int, drafts: int = 0) -> Step:
        """`pages`: how many rows need a page."""
        rows = np.sort(self.random.choice(ROWS, pages, replace=False))
        self.give(rows, lambda table: self.starts[rows] // table.plan.page_tokens)
        counts = np.full(ROWS, 1 + drafts)
        tokens = self.random.integers(0, 1 << 17, (ROWS, 1 + drafts)).astype(np.int32)
        tokens[:, 0] = SAMPLED
        self.number += 1
        starts, samples = self.starts.copy(), counts > 0
        step = Step(self.number, self.rows, starts, counts, samples, self.rows, tokens.ravel(), tables=self.views)
        return replace(step, drafts=np.full(ROWS, drafts)) if drafts else step

    def prompt_step(self) -> Step:
        """A row that computes a chunk of a prompt, on pages of its own."""
        row, start = np.array([7]), np.array([16_384])
        end = int(start[0]) + PROMPT
        self.give(row, lambda table: np.arange(int(start[0]) // table.plan.page_tokens, end // table.plan.page_tokens))
        tokens = self.random.integers(0, 1 << 17, PROMPT).astype(np.int32)
        self.number += 1
        return Step(self.number, row, start, np.array([PROMPT]), start > 0, row, tokens, tables=self.views)

    def send(self, step: Step) -> bytes:
        return encode(RankStep(step), [log.take() for log in self.logs])

    def receive(self, data: bytes) -> Step:
        return decode(data, self.followed).step


def work_for(model: str) -> Work:
    shape = read_model(model)
    settings = Settings(max_length=LENGTH, max_requests=ROWS, speculative_tokens=DRAFTS)
    return Work(make_plan(shape, settings, Budget(pool_bytes=1 << 38)))


def steps_of(work: Work) -> dict[str, Callable[[], Step]]:
    usual = max(1, ROWS // 16)
    return {
        "256 rows decode": lambda: work.decode_step(usual),
        "256 rows decode, each needs a page": lambda: work.decode_step(ROWS),
        "256 rows decode with 4 drafts each": lambda: work.decode_step(4 * usual, DRAFTS),
        "8,192 tokens of a prompt": work.prompt_step,
    }


def measure(work: Work, make: Callable[[], Step], channel: Channel, rounds: int) -> tuple[int, list[float]]:
    """Bytes, and median microseconds: to write, to read, there and back."""
    times: list[list[float]] = [[], [], []]
    size = 0
    for _ in range(rounds):
        step = make()
        begin = time.perf_counter()
        data = work.send(step)
        written = time.perf_counter()
        work.receive(data)
        read = time.perf_counter()
        channel.send(Kind.STEP, data)
        assert channel.receive_one().number() == len(data)
        ended = time.perf_counter()
        size = max(size, len(data))
        for own, seconds in zip(times, (written - begin, read - written, ended - read), strict=True):
            own.append(1e6 * seconds)
    return size, [statistics.median(own) for own in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    ours, theirs = socketpair()
    command = [*python("-c", ECHO), str(theirs.fileno())]
    other = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=sys.stderr)
    theirs.close()
    channel = Channel(ours)
    print("| model | step | bytes | write | read | to a process and back |\n| --- | --- | --- | --- | --- | --- |")
    for model in MODELS:
        work = work_for(model)
        for name, make in steps_of(work).items():
            size, times = measure(work, make, channel, rounds)
            print(f"| {model} | {name} | {size:,} | " + " | ".join(f"{one:.0f} µs" for one in times) + " |", flush=True)
    channel.close()
    other.wait()


if __name__ == "__main__":
    main()
