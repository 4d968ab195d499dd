"""What kinds that do not grow keep of chains: pages stay as long as a boundary or a group of spares needs them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from cached_traffic import UNIT, Traffic, joined, plan_of, words
from quire.check.promises import check_books, check_nothing_left
from quire.core.sampling import Sampling
from quire.prefix.index import PrefixIndex
from quire.prefix.keys import keys_of
from quire.prefix.nodes import NO_GROUP, Chain
from unlikely import drop_unlikely

WINDOW = 50
"""Of `small_kinds`: a hit needs the pages of the last 49 tokens before it."""
MIXES = [["full", "window"], ["full", "state"], ["sink"], ["chunked", "state"], ["full", "window", "chunked", "state"]]


def traffic_of(*kinds: str, **numbers: int) -> Traffic:
    return Traffic(plan_of(*kinds, **{"sheets": 900, "max_length": 600} | numbers))


def chain_of(traffic: Traffic, prompt: np.ndarray) -> Chain:
    """What is cached of a prompt, in whole units."""
    keys = keys_of(traffic.scheduler.reuse.root_of(""), prompt, UNIT)
    return traffic.index.nodes.follow(keys, len(keys))


def found(traffic: Traffic, prompt: np.ndarray) -> int:
    """Tokens that a prompt which begins like this would find."""
    longer, root = joined(prompt, words("more", 1)), traffic.scheduler.reuse.root_of("")
    return traffic.index.find(keys_of(root, longer, UNIT), root, longer).tokens


def has_tail(traffic: Traffic, nodes: Chain) -> list[bool]:
    """At which nodes every kind with a tail keeps all its pages."""
    index, kept = traffic.index, np.ones(len(nodes), dtype=bool)
    for memory, kinds in zip(index.memories, index.coverage.tails, strict=True):
        for kind in kinds:
            kept &= memory.kept[kind].present[nodes].all(axis=1)
    return kept.tolist()


def pages_kept(traffic: Traffic) -> int:
    return sum(int(kept.present.sum()) for memory in traffic.index.memories for kept in memory.kept)


def check_pages(index: PrefixIndex) -> None:
    """Recounts from boundaries and groups which node keeps what, and compares."""
    nodes, boundaries, coverage = index.nodes, index.boundaries, index.coverage
    there = nodes.is_there.nonzero()[0]
    needed = np.zeros(nodes.room, dtype=np.int64)
    for node, tail in boundaries.tails.items():
        assert nodes.is_there[node]
        assert nodes.is_there[tail].all(), "a boundary's tail is as old as the boundary"
        needed[tail] += 1
    assert needed[there].tolist() == nodes.needed[there].tolist()
    assert {int(node) for node in there if nodes.is_boundary[node]} == set(boundaries.tails)
    grouped = {int(node) for number in boundaries.groups for node in boundaries.members(number)}
    assert {int(node) for node in there if nodes.group[node] != NO_GROUP} == grouped
    gone = np.setdiff1d(np.arange(nodes.room), there)
    unneeded = there[(nodes.needed[there] == 0) & (nodes.group[there] == NO_GROUP)]
    plain = there[(nodes.is_boundary[there] == 0) & (nodes.group[there] == NO_GROUP)]
    for memory, growing, tails, states in zip(
        index.memories, coverage.growing, coverage.tails, coverage.states, strict=True
    ):
        assert all(not kept.present[gone].any() for kept in memory.kept), "what is gone keeps nothing"
        assert all(memory.kept[kind].present[there, 0].all() for kind in growing), "kinds that grow keep every unit"
        assert not any(memory.kept[kind].present[unneeded].any() for kind in tails), "no tail that nothing needs"
        assert not any(memory.kept[kind].present[plain].any() for kind in states), "no state that nothing needs"
    for node in boundaries.tails:
        path = nodes.path(node)
        assert coverage.usable(path, nodes.tokens[path])[-1], "a hit may end at every boundary"


@pytest.mark.law
@pytest.mark.parametrize("kinds", MIXES)
def test_pages_are_kept_for_boundaries_and_groups_and_for_nothing_else(kinds: list[str]) -> None:
    """Sessions that go on, branch off and are evicted, in a pool that holds a few of them."""
    traffic, random = traffic_of(*kinds, sheets=90, max_length=300), Random(str(kinds))
    old = [words("r", 100)]
    for number in range(20):
        begin = random.choice(old)
        prompt = joined(begin[: random.choice((len(begin), random.randint(0, len(begin))))], words(f"r{number}", 50))
        stream = traffic.submit(f"r{number}", prompt[:220], random.randint(1, 40))
        traffic.finish()
        old.append(joined(stream.request.prompt, stream.tokens()))
        check_pages(traffic.index)
        for _ in range(random.randint(0, 3)):
            traffic.index.evict(random.choice((0, 20_000)), must=False)
            check_pages(traffic.index)
            check_books(traffic.scheduler)
    traffic.evict_all()
    assert pages_kept(traffic) == 0
    check_nothing_left(traffic.scheduler)


# ── boundaries ────────────────────────────────────────────────────────────


def test_a_boundary_needs_the_pages_that_its_window_touches_and_no_others() -> None:
    traffic = traffic_of("full", "window")
    traffic.ask("a", words("a", 97))
    drop_unlikely(traffic.index)
    chain = chain_of(traffic, words("a", 97))
    assert found(traffic, words("a", 96)) == 96
    assert has_tail(traffic, chain) == [UNIT * (unit + 1) > 96 - (WINDOW - 1) for unit in range(12)]


def test_a_boundary_with_sinks_needs_the_first_pages_too() -> None:
    """20 sinks and a window of 33 tokens."""
    traffic = traffic_of("sink")
    traffic.ask("a", words("a", 97))
    drop_unlikely(traffic.index)
    chain = chain_of(traffic, words("a", 97))
    assert has_tail(traffic, chain) == [unit < 3 or UNIT * (unit + 1) > 96 - 32 for unit in range(12)]
    assert traffic.index.coverage.needed_units(96) == (3, 8)
    assert traffic.index.coverage.needed_units(100_000) == (3, (100_000 - 32) // UNIT)


def test_marking_a_boundary_again_changes_nothing() -> None:
    traffic = traffic_of("full", "window", "state")
    traffic.ask("a", words("a", 97))
    index, chain = traffic.index, chain_of(traffic, words("a", 97))
    needed = index.nodes.needed.copy()
    index.boundaries.mark(chain)
    index.eviction.promote(chain)
    assert (index.nodes.needed == needed).all()
    check_pages(index)


def test_a_page_that_two_boundaries_need_stays_until_both_are_gone() -> None:
    """Two prompts part 16 tokens before they end: each one's window reaches into what they share."""
    traffic = traffic_of("full", "window")
    prompts = [joined(words("a", 80), words(name, 17)) for name in "ab"]
    for name, prompt in zip("ab", prompts, strict=True):
        traffic.ask(name, prompt)
    index = traffic.index
    drop_unlikely(index)
    shared = chain_of(traffic, words("a", 80))[7:]
    assert (index.nodes.needed[shared] >= 2).all()
    drop_ends(traffic, prompts[0])
    assert found(traffic, prompts[1][:96]) == 96
    assert has_tail(traffic, shared) == [True] * 3
    check_pages(index)
    drop_ends(traffic, prompts[1])
    for node in list(index.boundaries.tails):
        index._drop_boundary(node)
    assert has_tail(traffic, shared) == [False] * 3, "the chain is still there"
    check_pages(index)


def drop_ends(traffic: Traffic, prompt: np.ndarray) -> None:
    """Evicts all of a chain that no other one has."""
    index = traffic.index
    while len(chain := chain_of(traffic, prompt)) == 12:
        (leaf,) = [leaf for leaf in index.nodes.leaves().tolist() if chain[-1] in index.nodes.path(leaf)]
        bundle, _ = index._cut_off(leaf, 0)
        index._forget_pages(bundle)
        check_books(traffic.scheduler)


def test_evicting_the_end_of_a_chain_takes_the_pages_before_it_that_it_alone_needed() -> None:
    """A short branch leaves a long chain after 96 tokens: its window reaches back to pages that the long one left."""
    traffic = traffic_of("full", "window")
    traffic.ask("a", words("a", 200))
    branch = joined(words("a", 96), words("b", 9))
    traffic.ask("b", branch)
    index, shared = traffic.index, chain_of(traffic, words("a", 96))
    for number in list(index.boundaries.groups):
        index._drop_group(number)
    index._drop_boundary(shared.item(-1))
    assert has_tail(traffic, shared) == [False] * 6 + [True] * 6, "the branch's own"
    while len(chain_of(traffic, branch)) > 12:
        (leaf,) = [leaf for leaf in index.nodes.leaves().tolist() if index.nodes.tokens[leaf] < 110]
        index._forget_pages(index._cut_off(leaf, 0)[0])
    check_pages(index)
    check_books(traffic.scheduler)
    assert has_tail(traffic, shared) == [False] * 12
    assert found(traffic, words("a", 199)) == 192


@pytest.mark.parametrize("kinds", MIXES)
def test_nothing_is_given_back_twice(kinds: list[str]) -> None:
    """Chains that share beginnings go one after another: the pool has each page back once, and all in the end."""
    traffic = traffic_of(*kinds)
    for name, size in (("a", 97), ("b", 130), ("c", 60), ("d", 97)):
        traffic.ask(name, joined(words("shared", 40), words(name, size)), 30)
    held = pages_kept(traffic)
    while traffic.index.evict(0, must=True).pieces:
        check_books(traffic.scheduler)
        assert pages_kept(traffic) <= held
        held = pages_kept(traffic)
    assert held == 0
    assert all(memory.pool.free_sheets == memory.stage.sheets for memory in traffic.index.memories)


# ── spares ────────────────────────────────────────────────────────────────


def test_while_there_is_room_a_prompt_can_be_gone_on_from_at_every_unit_of_it() -> None:
    """Window pages that a prompt leaves on its way are kept: whatever prompt parts from it finds what they share."""
    traffic = traffic_of("full", "window")
    traffic.ask("a", words("a", 200))
    assert [found(traffic, words("a", size)) for size in range(8, 200, 8)] == list(range(8, 200, 8))


def test_spares_that_are_computed_again_stay_with_their_group() -> None:
    """The same prompt is computed once more, for its log-probabilities."""
    traffic = traffic_of("full", "window")
    traffic.ask("a", words("a", 200))
    groups, column = set(traffic.index.boundaries.groups), traffic.index.nodes.group.copy()
    traffic.ask("again", words("a", 200), sampling=Sampling(prompt_logprobs=1))
    assert traffic.admitted("again")["hit_tokens"] == 0
    assert set(traffic.index.boundaries.groups) == groups
    assert (traffic.index.nodes.group == column).all()
    check_pages(traffic.index)


def test_a_hit_among_spares_makes_a_boundary_that_outlives_them() -> None:
    traffic = traffic_of("full", "window")
    traffic.ask("a", words("a", 200))
    assert traffic.ask("b", joined(words("a", 104), words("b", 40)))["hit_tokens"] == 104
    for number in list(traffic.index.boundaries.groups):
        traffic.index._drop_group(number)
    check_pages(traffic.index)
    assert [found(traffic, words("a", size)) for size in (96, 104, 112)] == [0, 104, 104]


def test_evicting_spares_leaves_what_boundaries_need() -> None:
    traffic = traffic_of("full", "window", "state")
    traffic.ask("a", words("a", 200), 20)
    index = traffic.index
    places = sorted(index.nodes.tokens[node].item() for node in index.boundaries.tails)
    held = pages_kept(traffic)
    for number in list(index.boundaries.groups):
        index._drop_group(number)
        check_pages(index)
        check_books(traffic.scheduler)
    assert pages_kept(traffic) < held
    assert len(index.nodes) == 200 // UNIT + 3, "chains stay"
    assert places == [192, 219]
    assert found(traffic, words("a", 199)) == 192


def test_evicting_a_boundary_leaves_the_pages_that_spares_need() -> None:
    traffic = traffic_of("full", "window")
    traffic.ask("a", words("a", 200), 20)
    index = traffic.index
    for node in list(index.boundaries.tails):
        if index.nodes.children[node]:
            index._drop_boundary(node)
    check_pages(index)
    assert found(traffic, words("a", 199)) == 192, "its spares are still there"


def test_spares_of_thousands_of_units_are_kept_and_let_go_together() -> None:
    """A prompt of 120,000 tokens in one chunk; a hit at any of 15,000 places, then at none but its end."""
    traffic = traffic_of("full", "window", sheets=60_000, batch_tokens=130_000, max_length=130_000)
    prompt = words("a", 120_001)
    traffic.ask("a", prompt)
    places = [8, 4_096, 65_536, 104_000, 119_992]
    hits = [found(traffic, prompt[:size]) for size in places]
    assert hits[-1] == 119_992
    for number in list(traffic.index.boundaries.groups):
        traffic.index._drop_group(number)
    check_pages(traffic.index)
    assert [found(traffic, prompt[:size]) for size in places] == [0] * 5
    assert found(traffic, prompt[:120_000]) == 120_000
