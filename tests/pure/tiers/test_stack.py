"""The real stack under a scheduler, without a model: every record carries its name, and is checked when it lands.

A load may fail, come late or never; its request may be gone. What lands in a row's pages is what that row asked for.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from quire.build.peers import fingerprint_of
from quire.build.tiers import layout_of
from quire.check.promises import check_books
from quire.core.events import (
    Event,
    LoadFailed,
    LoadFinished,
    LoadStarted,
    PrefixKept,
    RecordsStored,
    RequestAdmitted,
    RequestEnded,
)
from quire.core.memory import Memory, Part
from quire.core.reasons import Reason, Why
from quire.core.request import Request
from quire.kinds import counts
from quire.models.read import read_model
from quire.models.shape import Layer, ModelShape
from quire.plan.make import make_plan
from quire.plan.records import Records, host_plan, size_bytes
from quire.plan.settings import Budget, Settings
from quire.tiers.host_cache import HostCache
from scenes_of_tiers import Bytes, Drawer, World, small_plan
from small_kinds import KINDS

MIXES = [["full"], ["full", "window"], ["state", "full", "chunked"], ["state"]]


@pytest.mark.parametrize("names", MIXES, ids=" ".join)
def test_what_was_forgotten_comes_back_from_host_memory(names: list[str]) -> None:
    world = World(names, [], blocks=64)
    prompt = np.arange(100)
    world.ask("cold", prompt)
    world.drop_cache()
    world.ask("warm", prompt)
    assert world.loaded() == [96]
    assert world.runner.checked > 0
    world.check_nothing_is_held()


@pytest.mark.parametrize("names", MIXES, ids=" ".join)
def test_what_host_memory_forgot_comes_back_from_the_tier_below(names: list[str]) -> None:
    """Each unit and each boundary is read once; one more read saw at the start that the drawer works."""
    drawer = Drawer()
    world = World(names, [drawer], blocks=64)
    for name, begin in (("a", 0), ("b", 1000), ("a again", 0), ("b again", 1000)):
        world.ask(name, begin + np.arange(100))
        world.forget()
    assert world.loaded() == [96, 96]
    assert drawer.calls["read"] == 2 * (12 * ("full" in names) + (names != ["full"])) + 1
    world.check_nothing_is_held()


@pytest.mark.parametrize("names", [*MIXES[1:], ["window"]], ids=" ".join)
@pytest.mark.parametrize("has_tier_below", [False, True])
def test_a_talk_goes_on_from_where_its_last_turn_ended_between_two_units(
    names: list[str], has_tier_below: bool
) -> None:
    """100 + 3 tokens, of which 102 were computed: 12 units of 8 and 6 tokens behind them come back."""
    world = World(names, [Drawer()] * has_tier_below, blocks=64)
    prompt = np.arange(100)
    world.ask("first turn", prompt)
    answer = next(event for event in world.told if isinstance(event, RequestEnded))
    assert answer.outputs == 3
    world.forget() if has_tier_below else world.drop_cache()
    world.ask("second turn", np.concatenate([prompt, [100, 101, 102], 500 + np.arange(20)]))
    assert world.loaded() == [102]
    world.check_nothing_is_held()


def test_a_turn_that_ended_before_its_first_unit_comes_back() -> None:
    world = World(["full", "window"], [], blocks=64)
    world.ask("first turn", np.arange(3), outputs=4)
    world.drop_cache()
    world.ask("second turn", np.array([0, 1, 2, 3, 4, 5, *range(50, 80)]))
    assert world.loaded() == []
    world.drop_cache()
    world.ask("long", np.arange(60), outputs=1)
    world.drop_cache()
    world.ask("long again", np.arange(70), outputs=1)
    assert world.loaded() == [60]


def test_the_same_prompt_in_another_scope_finds_nothing_on_any_tier() -> None:
    """Scenario 12."""
    drawer = Drawer()
    world = World(["full", "window"], [drawer], blocks=64)
    prompt = np.arange(100)
    world.ask("a", prompt, scope="one")
    world.drop_cache()
    world.ask("b", prompt, scope="two")
    assert world.loaded() == []
    world.drop_cache()
    world.ask("c", prompt, scope="one")
    assert world.loaded() == [96]


def test_the_end_of_a_prefix_is_forgotten_before_its_beginning() -> None:
    world = World(["full"], [], blocks=14)
    world.ask("a", np.arange(100))
    world.ask("b", 1000 + np.arange(40))
    world.drop_cache()
    world.ask("a again", np.arange(100))
    (tokens,) = world.loaded()
    assert 0 < tokens < 96


def test_a_tier_that_never_answers_costs_one_deadline_and_its_late_bytes_touch_nobody() -> None:
    """Scenario 3: a load hangs; its request computes its tokens, others go on, and the block it writes to stays its
    own until the connector returns."""
    drawer = Drawer()
    world = World(["full"], [drawer], blocks=30, load_seconds=0.05)
    world.ask("cold", np.arange(100))
    world.forget()
    drawer.gate.clear()
    world.ask("late", np.arange(100))
    (failed,) = [event for event in world.told if isinstance(event, LoadFailed)]
    assert failed.reason == Reason(Why.NO_ANSWER, numbers={"seconds": 0.05})
    (opened,) = world.stack.loads._open.values()
    assert opened.is_cancelled
    held = {block for record in opened.records for block in record.blocks}
    world.ask("another", 2000 + np.arange(100))
    assert not held & {block for record in world.stack.held.cache._records.values() for block in record.blocks}
    drawer.gate.set()
    while world.stack.loads._open:
        time.sleep(0.001)
    world.check_nothing_is_held()


@pytest.mark.story
def test_when_every_thread_waits_for_a_tier_that_never_answers_nobody_else_is_sent_there() -> None:
    """Each of two threads costs one deadline; from then on prompts are computed at once, until one comes back."""
    drawer = Drawer()
    world = World(["full"], [drawer], blocks=60, load_seconds=0.05)
    for place in range(4):
        world.ask(f"cold {place}", 1000 * place + np.arange(100))
    world.forget()
    drawer.gate.clear()
    for place in range(4):
        world.ask(f"late {place}", 1000 * place + np.arange(100))
        world.drop_cache()
    begun = [event.request for event in world.told if isinstance(event, LoadStarted)]
    assert begun == ["late 0", "late 1"]
    drawer.gate.set()
    while world.stack.loads._open:
        time.sleep(0.001)
    world.forget()
    world.ask("again", np.arange(100))
    assert world.loaded() == [96]
    world.check_nothing_is_held()


def fewest(told: Sequence[Event]) -> int:
    """Loads that finished, loads that failed or records that were stored: the fewest of them."""
    counts = Counter(type(event) for event in told)
    return min(counts[LoadFinished], counts[LoadFailed], counts[RecordsStored])


@pytest.mark.parametrize("most", [250, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("names", MIXES[1:3], ids=" ".join)
def test_after_aborts_with_a_faulty_tier_nothing_is_held_and_nothing_wrong_has_landed(
    names: list[str], most: int
) -> None:
    """Scenario 10, on the real stack: requests of twelve talks come and go; the tier below fails and dawdles."""
    random, aborts, number = Random(3), 0, 0
    drawer = Drawer(random=Random(4))
    world = World(names, [drawer], blocks=60, load_seconds=0.02)
    while aborts < most or (aborts < 4 * most and fewest(world.told) <= 5):  # on a busy machine, loads take longer
        while len(world.engine.streams) < 6:
            talk = 1000 * random.randrange(12) + np.arange(random.randint(0, 90))
            prompt = np.concatenate([talk, 50_000 + number + np.arange(random.randint(1, 20))])
            world.engine.submit(Request(f"r{number}", prompt.astype(np.int32), random.randint(1, 8)))
            number += 1
        world.now += 0.5
        world.engine.step()
        check_books(world.engine.scheduler)
        if random.random() < 0.1:
            world.drop_cache()
        if random.random() < 0.8 and world.engine.streams:
            world.engine.cancel(random.choice(list(world.engine.streams)))
            aborts += 1
    world.engine.drain()
    while world.stack.loads._open:
        time.sleep(0.001)
    world.check_nothing_is_held()
    assert fewest(world.told) > 5
    assert world.runner.checked > 20
    assert drawer.calls["failed"] > 0


def test_a_stack_tells_what_travelled_how_long_and_what_is_on_its_way() -> None:
    """Twelve units of 100 tokens go out and come back from below; then a read hangs, and then it fails."""
    drawer = Drawer()
    world = World(["full"], [drawer], blocks=40, load_seconds=0.05)
    world.ask("cold", np.arange(100))
    world.forget()
    before, size = world.stack.status(), world.records.unit_bytes
    world.now += 1.0
    world.ask("warm", np.arange(100))
    host, below = world.stack.status()
    assert (host.name, below.name) == ("host", "drawer")
    assert (before[0].bytes["write"], host.bytes["read"]) == (12 * size, 12 * size)
    assert (host.hits, host.misses, below.hits, below.misses) == (0, 12, 12, 0)
    assert below.bytes["read"] - before[1].bytes["read"] == 12 * size
    assert below.bytes["write"] == 12 * size
    assert below.transfers["read"] - before[1].transfers["read"] == 12
    assert [one.in_flight for one in (host, below)] == [{"read": 0, "write": 0}] * 2
    world.forget()
    drawer.gate.clear()
    world.ask("late", np.arange(100))
    for _ in range(5000):  # a thread begins the read when it likes
        if world.stack.status()[1].in_flight["read"]:
            break
        time.sleep(0.001)
    assert [one.in_flight["read"] for one in world.stack.status()] == [1, 1]
    drawer.gate.set()
    while world.stack.loads._open:
        time.sleep(0.001)
    world.forget()
    world.ask("another", 5000 + np.arange(100))
    world.forget()
    drawer._random = Faulty()
    world.ask("failing", 5000 + np.arange(100))
    drawer._random = None
    below = world.stack.status()[1]
    assert below.failures["read"] == 1
    assert not below.can_read
    assert below.in_flight["read"] == 0


class Faulty(Random):
    """Always below any rate."""

    def random(self) -> float:
        return 0.0


def test_routers_are_told_how_much_of_a_request_can_be_reused() -> None:
    """What was kept is what the next request that begins with it finds."""
    for names, tokens in ((["full"], 96), (["full", "window"], 102)):
        world = World(names, [], blocks=64)
        world.ask("first", np.arange(100))
        (kept,) = [event for event in world.told if isinstance(event, PrefixKept)]
        assert (kept.request, kept.tokens) == ("first", tokens)
        assert len(bytes.fromhex(kept.key)) == 32
        world.ask("second", np.concatenate([np.arange(103), 500 + np.arange(9)]))
        found = [event.hit_tokens for event in world.told if isinstance(event, RequestAdmitted)]
        assert found == [0, tokens]


def test_the_blocks_of_host_memory_are_counted_from_the_plan() -> None:
    """MLA 1,152 B × 61 layers in pages of 64 tokens: 64 GiB hold 15,279 of them, on four ranks as on one."""
    latent = Layer((Memory("latent", (Part("latent", 1, 576, replicated=True),)),))
    shape = ModelShape("mla", "test", (latent,) * 61, max_length=1 << 20, weights_known=False)
    for ranks in (1, 4):
        settings = Settings(page_tokens={"": 64}, tensor_parallel=ranks)
        plan = make_plan(shape, settings, Budget(pool_bytes=8 << 30))
        assert (64 << 30) // Records(plan).block_bytes == 15_279


@pytest.mark.parametrize(
    ("names", "block_tokens"),
    [*((names, None) for names in MIXES), *((names, 8) for names in (["full"], ["full", "sink", "chunked"]))],
)
def test_as_many_idle_sessions_stay_warm_as_the_plan_says(names: list[str], block_tokens: int | None) -> None:
    """Their records, laid into blocks as the tier does it, fill host memory and push none of them out; one session
    more does not fit."""
    plan = small_plan(names, block_tokens=block_tokens, unit_tokens=16)
    records = Records(plan)
    host = host_plan(plan, 1 << 20)
    cache = HostCache(host.blocks, host.block_bytes)
    assert cache.blocks == Bytes((1 << 20) // records.block_bytes, records.block_bytes).blocks
    boundary = max(size_bytes(records.at(end)) for end in range(1, host.session_tokens + 1))
    sizes = [records.unit_bytes] * (host.session_tokens // 16) * records.has_units + [boundary] * records.has_boundaries
    assert host.warm_sessions > 3
    for session in range(host.warm_sessions):
        assert all(cache.reserve(bytes([session % 256, record]), size) for record, size in enumerate(sizes))
    assert not all(cache.reserve(b"one more", size) for size in sizes)


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"cross", "full", "latent"}))
def test_a_boundary_record_has_the_pages_that_a_request_standing_there_needs(name: str) -> None:
    """The demand that rows are admitted by, and no formula of its own: before the next token, and at most with it."""
    records = Records(small_plan([name]))
    for boundary in range(1, 144):
        for span in records.at(boundary):
            before, beside = (
                int(span.plan.kind.pages(counts(boundary), counts(new), counts(0), span.plan.page_tokens))
                for new in (0, 1)
            )
            assert before <= len(span.logical) <= beside
            assert len(set(span.logical.tolist())) == len(span.logical)
            assert boundary % 8 or len(span.logical) == before
            assert size_bytes(records.at(boundary)) <= records.largest_boundary_bytes


@pytest.mark.story
@pytest.mark.parametrize(("model", "max_length"), [("mistral-7b-v0.1", 127), ("gemma-3-27b", 190)])
def test_no_boundary_up_to_the_longest_request_takes_more_than_the_largest(model: str, max_length: int) -> None:
    """A turn may also end behind the last whole unit: 16 MiB at 113 tokens, where 8 MiB were told to connectors."""
    plan = make_plan(read_model(model), Settings(max_length=max_length), Budget(pool_bytes=8 << 30))
    records = Records(plan)
    most = max(size_bytes(records.at(boundary)) for boundary in range(1, max_length + 1))
    assert 0 < most <= records.largest_boundary_bytes


def test_host_memory_hands_out_every_block_once_and_evicts_the_least_recently_used() -> None:
    cache = HostCache(4, 10)
    first, second = cache.reserve(b"first", 20), cache.reserve(b"second", 11)
    assert first is not None
    assert second is not None
    assert sorted(first.blocks + second.blocks) == [0, 1, 2, 3]
    assert cache.reserve(b"third", 1) is None
    for record in (first, second):
        cache.publish(record)
        cache.unpin(record)
    assert cache.use(b"first") is first
    third = cache.reserve(b"third", 10)
    assert third is not None
    assert b"second" not in cache
    assert b"first" in cache
    assert cache.reserve(b"none", 0) is not None


def test_records_are_named_without_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source tree on the path is enough: the version is the package's own."""

    def not_installed(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    plan = small_plan(["full"])
    names = layout_of(plan, "weights").fingerprint, fingerprint_of(plan, "weights")
    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", not_installed)
    assert (layout_of(plan, "weights").fingerprint, fingerprint_of(plan, "weights")) == names
    monkeypatch.setattr("quire.build.tiers.__version__", "0.0.0")
    monkeypatch.setattr("quire.build.peers.__version__", "0.0.0")
    assert layout_of(plan, "weights").fingerprint != names[0]
    assert fingerprint_of(plan, "weights") != names[1]
