"""Records between a GPU's pool and host memory, alone and beside decode steps, beside one plain pinned copy.

    python bench/bus.py [--rows 128] [--tokens 1024] [--no-compile] [--json FILE]

The shape of Llama-3.1-8B with random weights, pages of 16 tokens (2 MiB). Whole sessions of 2,000 tokens go out and
come back through the engine's own staging and stack: as many as keep the bus busy are handed over at the launch of
every step. A rate is what arrived ÷ seconds. A decode step is the mean over many, in wall-clock time; it is also timed
alone, before and after.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from quire.bench.decode import Case, Decoding
from quire.bench.report import Report, Table, about
from quire.bench.unprompted import Unprompted
from quire.build.tiers import layout_of
from quire.core.dtypes import DType
from quire.core.step import Step, TableView
from quire.core.tier import Load, Store
from quire.core.units import GIB, format_bytes
from quire.movers.host import HostMemory
from quire.options.run import RunOptions
from quire.plan.plan import Plan
from quire.plan.records import Records, unit_name
from quire.tiers.stack import Stack
from quire.worker.pages.arena import Arena
from quire.worker.pages.bus import Bus
from quire.worker.pages.copies import Pieces
from quire.worker.pages.staging import Staging
from quire.worker.steps.runner import TorchRunner

SHAPE = "llama-3.1-8b"
SESSION_TOKENS = 2_000
STEPS, PLANNED_STEPS = 32, 48
IN_FLIGHT = 8
"""Sessions on their way at once."""
HOST_BYTES = 8 * GIB
GOAL_SHARE, GOAL_SLOWER = 0.85, 0.05
PAGES_KIB = (64, 128, 512, 2_048)


class Ferry:
    """Hands sessions over, in pages that no request holds."""

    def __init__(self, plan: Plan, arena: Arena) -> None:
        (stage,) = plan.stages
        self.records = Records(plan)
        self.memory = HostMemory(HOST_BYTES, self.records.block_bytes, is_pinned=True)
        self.stack = Stack(self.records, self.memory, (), layout_of(plan, "bench"), lands_later=True)
        self.bus = Bus(arena.bytes, self.memory.tensor, stage.sheet_bytes)
        self.staging = Staging(plan, self.bus, self.stack)
        self.units = SESSION_TOKENS // self.records.unit_tokens
        self.session_bytes = self.units * self.records.unit_bytes
        self._each = self.records.unit_tokens // stage.kinds[0].page_tokens
        pages = np.random.default_rng(0).permutation(np.arange(stage.sheets // 4, stage.sheets // 2))
        count = self.units * self._each
        self._pages = [pages[place * count : (place + 1) * count] for place in range(2 * IN_FLIGHT)]
        self._tables = [TableView(stage.addresses(0, own)[None, None], 0) for own in self._pages]
        self._latest: list[tuple[bytes, ...]] = []
        self._turn = 0
        self.store()
        self.stack.flush()
        self._kept = tuple(self._latest)
        """Sessions in host memory: loads bring them again and again, so they are held there."""
        assert all(self.stack.held.hold([unit_name(key) for key in keys]) for keys in self._kept)

    def moved(self, way: str) -> int:
        return self.stack.status()[0].bytes[way]

    def store(self) -> None:
        while self.stack.status()[0].in_flight["write"] < IN_FLIGHT * self.units:
            keys = tuple(os.urandom(32) for _ in range(self.units))
            pages = self._pages[self._next()]
            stores = []
            for unit, key in enumerate(keys):
                place = self.stack.accept(unit_name(key), self.records.unit_bytes)
                assert place is not None, "host memory is full of transfers"
                stores.append(Store(place, ((0, 0, pages[unit * self._each : (unit + 1) * self._each]),), 0))
            self.staging.store(stores)
            self._latest = [*self._latest, keys][-IN_FLIGHT:]

    def load(self) -> None:
        self.stack.answers()
        while self.stack.status()[0].in_flight["read"] < IN_FLIGHT:
            tables = ((self._tables[self._next()],),)
            keys = self._kept[self._turn % len(self._kept)]
            self.stack.begin(Load(self._turn, "bench", keys, self.units * self.records.unit_tokens))
            self.staging.load([(self._turn, 0)], tables)

    def both(self) -> None:
        self.store()
        self.load()

    def _next(self) -> int:
        self._turn += 1
        return self._turn % len(self._pages)


class Beside(Unprompted):
    """Feeds the bus at the launch of every step."""

    feed: Callable[[], None] | None = None

    def launch(self, step: Step) -> None:
        if self.feed is not None:
            self.feed()
        super().launch(step)


def pinned_rates(ferry: Ferry, arena: torch.Tensor) -> dict[str, float]:
    """GB/s of one large copy, the best of three."""
    host, device = ferry.memory.tensor.view(-1)[:GIB], arena[:GIB]
    pairs = {"write": (host, device), "read": (device, host)}
    return {way: max(_copy_rate(*pair) for _ in range(3)) for way, pair in pairs.items()}


def _copy_rate(target: torch.Tensor, source: torch.Tensor) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    target.copy_(source, non_blocking=True)
    end.record()
    torch.cuda.synchronize()
    return GIB / begin.elapsed_time(end) / 1e6


def alone(ferry: Ferry, way: str, feed: Callable[[], None], seconds: float = 0.5) -> float:
    """GB/s without decode steps."""
    feed()
    time.sleep(0.1)
    before, begin = ferry.moved(way), time.perf_counter()
    while time.perf_counter() < begin + seconds:
        feed()
        time.sleep(0.002)
    return (ferry.moved(way) - before) / (time.perf_counter() - begin) / 1e9


def beside(decoding: Decoding, ferry: Ferry, feed: Callable[[], None] | None) -> tuple[float, dict[str, float]]:
    """Milliseconds of a decode step, and GB/s each way meanwhile."""
    runner = decoding.unprompted
    assert isinstance(runner, Beside)
    runner.feed = feed
    for _ in range(4):
        decoding.engine.step()
    before, begin = {way: ferry.moved(way) for way in ("write", "read")}, time.perf_counter()
    for _ in range(STEPS):
        decoding.engine.step()
    seconds = time.perf_counter() - begin
    rates = {way: (ferry.moved(way) - moved) / seconds / 1e9 for way, moved in before.items()}
    runner.feed = None
    ferry.stack.flush()
    torch.cuda.synchronize()
    return 1e3 * seconds / STEPS, rates


def by_page(ferry: Ferry, runner: TorchRunner) -> Table:
    """Rates of the copies themselves by the size of pages, and what handing them over takes."""
    table: Table = []
    for kib in PAGES_KIB:
        size, count = kib * 1024, GIB // 2 // (kib * 1024)
        places = np.random.default_rng(0).permutation(4 * count)[:count] * size + runner.arena.bytes.numel() // 2
        pieces = Pieces(places // 256 * 256, np.arange(count) * size, np.full(count, size))
        line: dict[str, object] = {"page, KiB": f"{kib:,}"}
        for name, copy in (("store", ferry.bus.out), ("load", ferry.bus.back)):
            copy(pieces)()
            begin = time.perf_counter()
            wait = copy(pieces)
            line[f"{name} handed over in, ms"] = round(1e3 * (time.perf_counter() - begin), 2)
            line[f"{name}, GB/s"] = round(GIB / 2 / wait() / 1e9, 1)
        table.append(line)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=1_024)
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parser.add_argument("--json", type=Path, help="write the tables there as well")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here: copies are timed on one")
    case = Case(SHAPE, ((options.rows, options.tokens),))
    ferries: list[Ferry] = []

    def staging(plan: Plan, arena: Arena) -> Staging:
        ferries.append(Ferry(plan, arena))
        return ferries[0].staging

    run_options = RunOptions(device="cuda", compile=not options.no_compile)
    decoding = Decoding(case, run_options, DType.BF16, PLANNED_STEPS, wrap=Beside, staging=staging)
    runner, (ferry,) = decoding.built.runner, ferries
    pinned = pinned_rates(ferry, runner.arena.bytes)
    table = [
        {"what": "store", **rates({"write": alone(ferry, "write", ferry.store)}, pinned)},
        {"what": "load", **rates({"read": alone(ferry, "read", ferry.load)}, pinned)},
    ]
    feeds = {"decode and store": ferry.store, "decode and load": ferry.load, "decode and both": ferry.both}
    for name, feed in feeds.items():
        decoding.fill(options.rows, options.tokens)
        (before, _), (step, found), (after, _) = (beside(decoding, ferry, own) for own in (None, feed, None))
        decoding.empty()
        base = (before + after) / 2
        table.append({"what": name, **rates(found, pinned), "step, ms": round(step, 2), "alone, ms": round(base, 2),
                      "slower": f"{step / base - 1:+.1%}"})  # fmt: skip
        print(table[-1], flush=True)
    columns = dict.fromkeys(table[-1], "")
    goal = f"goal: {GOAL_SHARE:.0%} of the pinned copy, decode slower by {GOAL_SLOWER:.0%} at most"
    plain = {
        f"one pinned copy {way}": f"{rate:.1f} GB/s" for way, rate in zip(("out", "back"), pinned.values(), strict=True)
    }
    sizes = {"rows": f"{options.rows} × {options.tokens:,}", "a session": format_bytes(ferry.session_bytes)}
    report = Report(about("cuda", compiled=not options.no_compile, **plain, **sizes),
                    {goal: [columns | line for line in table], "by page": by_page(ferry, runner)})  # fmt: skip
    print(report.text())
    if options.json:
        options.json.write_text(report.json())
    ferry.stack.close()


def rates(found: dict[str, float], pinned: dict[str, float]) -> dict[str, object]:
    line: dict[str, object] = {}
    for way, name in (("write", "store"), ("read", "load")):
        rate = found.get(way, 0.0)
        line[f"{name}, GB/s"] = round(rate, 1) if rate else ""
        line[f"{name} ÷ pinned"] = f"{rate / pinned[way]:.0%}" if rate else ""
    return line


if __name__ == "__main__":
    main()
