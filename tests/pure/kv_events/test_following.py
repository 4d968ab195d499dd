"""Whoever reads all events knows the index: which whole units are there, with which tokens, after every step."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from examples import rest_in_soak
from kv_follower import KvFollower
from quire.core.request import Request
from quire.engine.engine import Engine
from quire.kv_events.collector import Collector, hash_of
from quire.kv_events.wire import Journal, payload
from small_engines import LENGTH, engine_for, small_plan

pytest.importorskip("msgpack", reason="MessagePack is not installed: pip install '.[events]'")


class Link:
    """From an engine's index to a follower, over bytes; loses batches, which the journal repeats."""

    def __init__(self, engine: Engine, random: Random, losses: float) -> None:
        self.collector, self.journal, self.follower = Collector(engine), Journal(), KvFollower()
        self.random, self.losses, self.gaps = random, losses, 0

    def carry(self) -> None:
        events = self.collector.take()
        if not events:
            return
        number, batch = self.journal.add(payload(0.0, events))
        if self.random.random() < self.losses:
            return
        if self.follower.has_gap(number):
            self.gaps += 1
            self.follower.repair(self.journal.since(self.follower.expected.to_bytes(8, "big")))
        self.follower.read(number, batch)

    def repair(self) -> None:
        self.follower.repair(self.journal.since(self.follower.expected.to_bytes(8, "big")))


def blocks_of(engine: Engine) -> dict[int, int]:
    """Whole units of the index: hash, and where they end."""
    index = engine.scheduler.reuse.index
    ends = {node for nodes in index.ends.values() for node in nodes}
    return {hash_of(key): int(index.nodes.tokens[node]) for key, node in index.nodes.items() if node not in ends}


def campaign(engine: Engine, link: Link, random: Random, steps: int) -> int:
    """Random requests of two scopes over shared beginnings, cancellations and dropped caches. Returns the number of
    units that were evicted or dropped."""
    removed = 0
    for step in range(steps):
        if random.random() < 0.4:
            engine.submit(_request(f"r{step}", random))
        if engine.streams and random.random() < 0.05:
            engine.cancel(random.choice(list(engine.streams)))
        if random.random() < 0.01:
            engine.drop_cache(random.choice([None, "", "alice"]))
        before = set(blocks_of(engine))
        engine.step()
        removed += len(before - set(blocks_of(engine)))
        link.carry()
        if not link.losses:
            assert {one: len(known) for one, (known, _) in link.follower.blocks.items()} == blocks_of(engine)
    return removed


def _request(name: str, random: Random) -> Request:
    size, own = random.randint(20, LENGTH - 30), random.randint(0, 3)
    prompt = np.arange(size, dtype=np.int32) + 1000 * random.randint(0, 2)
    prompt[size // 2 :] += 100 * own
    return Request(name, prompt, random.randint(1, 30), scope=random.choice(["", "alice"]))


@pytest.mark.law
@pytest.mark.parametrize(
    ("names", "losses"),
    rest_in_soak(
        [(names, losses) for names in (["full"], ["full", "window"], ["full", "state"]) for losses in (0.0, 0.3)],
        [(["full", "window"], 0.0), (["full", "state"], 0.3)],
    ),
)
def test_a_follower_of_the_events_has_the_index_after_every_step_or_after_a_replay(
    names: list[str], losses: float
) -> None:
    random = Random(7)
    engine, _ = engine_for(small_plan(names, 40))
    link = Link(engine, random, losses)
    assert campaign(engine, link, random, 400) > 5
    assert (link.gaps > 10) == (losses > 0)
    link.repair()
    assert {one: len(known) for one, (known, _) in link.follower.blocks.items()} == blocks_of(engine)
    assert {salt for _, salt in link.follower.blocks.values()} <= {"", *_salts(engine)}


def _salts(engine: Engine) -> set[str]:
    return {key[:8].hex() for key, _ in engine.scheduler.reuse.index.nodes.items()}


def test_blocks_carry_the_tokens_of_the_prompt_and_of_the_answer() -> None:
    engine, _ = engine_for(small_plan(["full"], None))
    link = Link(engine, Random(0), 0.0)
    prompt = np.arange(100, dtype=np.int32)
    stream = engine.submit(Request("a", prompt, 60))
    engine.drain()
    link.carry()
    known = max((tokens for tokens, _ in link.follower.blocks.values()), key=len)
    whole = [*prompt.tolist(), *stream.tokens().tolist()]
    assert len(known) > len(prompt)
    assert list(known) == whole[: len(known)]


def test_scopes_have_salts_and_what_is_everyones_has_none() -> None:
    engine, _ = engine_for(small_plan(["full"], 64))
    link = Link(engine, Random(0), 0.0)
    for scope in ("", "alice", "bob"):
        engine.submit(Request(f"of {scope}", np.arange(100, dtype=np.int32), 4, scope=scope))
    engine.drain()
    link.carry()
    salts = {salt for _, salt in link.follower.blocks.values()}
    assert len(salts) == 3
    assert "" in salts
    assert not salts & {"alice", "bob"}


def test_a_dropped_cache_leaves_no_block() -> None:
    engine, _ = engine_for(small_plan(["full", "window"], 64))
    link = Link(engine, Random(0), 0.0)
    engine.submit(Request("a", np.arange(150, dtype=np.int32), 4))
    engine.drain()
    link.carry()
    assert link.follower.blocks
    engine.drop_cache()
    link.carry()
    assert not link.follower.blocks
