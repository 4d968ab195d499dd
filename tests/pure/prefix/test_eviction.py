"""What is evicted next: the lowest value per byte, what queued requests await last, what is in use not at all."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from cached_traffic import UNIT, Traffic, joined, plan_of, words
from quire.cache.pool import Holder
from quire.check.promises import check_books
from quire.prefix import eviction as module
from quire.prefix.eviction import FEW, FRESH_SHARE
from quire.prefix.forecast import Floats, Forecast, Ints, Recency
from quire.prefix.hit import Place
from quire.prefix.index import PrefixIndex
from quire.prefix.keys import keys_of as keys_from
from quire.prefix.nodes import Chain
from unlikely import drop_unlikely


class ByWorth:
    """Tokens saved per byte alone; counts how often all values are computed."""

    def __init__(self, learns: bool = False) -> None:
        self.learns, self.times = learns, 0

    def values(self, classes: Ints, used: Floats, now: float, worths: Floats) -> Floats:
        del classes, used, now
        self.times += 1
        return worths

    def value(self, kind: int, used: float, now: float, worth: float) -> float:
        del kind, used, now
        return worth

    def note_use(self, kind: int, age: float) -> None: ...

    def note_end(self, kind: int, age: float) -> None: ...


def traffic_of(*kinds: str, forecast: Forecast | None = None, **numbers: int) -> Traffic:
    traffic = Traffic(plan_of(*kinds, **{"sheets": 2_000, "max_length": 600} | numbers))
    if forecast is not None:
        traffic.index.eviction.forecast = forecast
    return traffic


def test_traffic_is_counted_in_tokens_from_the_start() -> None:
    traffic = traffic_of("full")
    assert traffic.index.eviction.now == 0
    traffic.ask("one", words("one", 97), 3)
    assert traffic.index.eviction.now >= 97 + 3


def keys_of(traffic: Traffic, prompt: np.ndarray) -> list[bytes]:
    """Of the whole units of a prompt."""
    waiting = traffic.submit("keys", prompt) and traffic.waiting("keys")
    traffic.engine.cancel("keys")
    return waiting.keys


def chain_of(traffic: Traffic, prompt: np.ndarray) -> Chain:
    """What is cached of a prompt, in whole units."""
    keys = keys_of(traffic, prompt)
    return traffic.index.nodes.follow(keys, len(keys))


def found(traffic: Traffic, prompt: np.ndarray) -> int:
    """Tokens that a prompt which begins like this would find."""
    longer = joined(prompt, words("more", 1))
    keys = keys_of(traffic, longer)
    return traffic.index.find(keys, traffic.scheduler.reuse.root_of(""), longer).tokens


def taken(index: PrefixIndex, even_awaited: bool = False) -> list[int]:
    """All that can be evicted, the lowest first; nothing is. Old entries of the heap come again."""
    every = iter(lambda: index.eviction.lowest(False, even_awaited), None)
    return list(dict.fromkeys(one for one in every if one is not None))


# ── the order ─────────────────────────────────────────────────────────────


def worth_of(index: PrefixIndex, found: int) -> float:
    """From the definition: tokens saved by the bytes that going without it gives back."""
    nodes, coverage = index.nodes, index.coverage
    if found < 0:
        return index.boundaries.groups[-found].worth
    if not coverage.has_boundaries:
        return 1.0
    gain, end = int(nodes.gain[found]), coverage.boundary_bytes
    own = gain * sum(kind.token_bytes for m in index.memories for kind in m.stage.kinds if kind.kind.grows)
    return gain / (end if nodes.children[found] else own + end)


@pytest.mark.parametrize("kinds", [["full", "window"], ["full", "state"], ["window", "state"], ["full", "sink"]])
def test_ends_boundaries_on_the_way_and_spares_go_in_the_order_of_tokens_saved_per_byte(kinds: list[str]) -> None:
    """Every end of a chain, every boundary and every group of spares once, the lowest first."""
    traffic, random = traffic_of(*kinds, forecast=ByWorth()), Random(0)
    for number in range(12):
        traffic.ask(f"r{number}", words(f"r{number}", random.randint(20, 300)), random.randint(1, 60))
    index = traffic.index
    index.eviction.compute()
    order = taken(index)
    worths = [worth_of(index, one) for one in order]
    assert worths == pytest.approx(sorted(worths))
    expected = {*index.nodes.leaves().tolist(), *index.boundaries.tails, *(-one for one in index.boundaries.groups)}
    assert set(order) == expected
    assert len(order) == len(expected) > 20


@pytest.mark.parametrize(("uses", "gain"), [(0, 160), (1, 64)])
def test_a_boundary_saves_what_lies_behind_the_last_one_that_others_use_too(uses: int, gain: int) -> None:
    """One that a single request went on from is not in use by others: without the new one it would hardly be found."""
    traffic = traffic_of("full", "state", forecast=ByWorth())
    traffic.ask("a", words("a", 96))
    before = chain_of(traffic, words("a", 96))[-1]
    assert traffic.index.nodes.is_boundary[before]
    traffic.index.nodes.uses[before] = uses
    traffic.ask("b", joined(words("a", 96), words("b", 64)))
    end = chain_of(traffic, joined(words("a", 96), words("b", 64)))[-1]
    assert traffic.index.nodes.uses[before] == uses + 1
    assert traffic.index.nodes.gain[end] == gain


@pytest.mark.story
def test_a_boundary_that_a_chain_goes_on_from_is_ranked_as_one_on_the_way_at_once() -> None:
    """Evicting the end of a chain gives back its tokens too. A prompt's boundary became one on the way with its first
    answer, and kept the rank of an end, which is lower, until all values were computed anew."""
    traffic = traffic_of("full", "state", forecast=ByWorth())
    traffic.ask("a", words("a", 97), 30)
    nodes = traffic.index.nodes
    prompt, turn = (node for node in sorted(traffic.index.boundaries.tails, key=lambda one: nodes.tokens[one]))
    assert nodes.children[prompt]
    assert not nodes.children[turn]
    for node in (prompt, turn):
        assert nodes.rank[node] == pytest.approx(worth_of(traffic.index, node))
    assert [one for one in taken(traffic.index) if one >= 0] == [turn, prompt]


@pytest.mark.story
def test_a_prompt_that_leaves_no_page_on_its_way_leaves_no_group_of_spares() -> None:
    """States are captured every 512 tokens. Each chunk without one left a group of no pages, worth more per byte than
    anything else, and what was evicted of it counted as spares that were never used."""
    traffic = traffic_of("full", "state", max_length=1300)
    traffic.ask("a", words("a", 1200))
    index, (memory,), (states,) = traffic.index, traffic.scheduler.memories, traffic.index.coverage.states
    assert len(index.boundaries.groups) == 3, "after 512 and after 1,024 tokens, and where the prompt ends"
    for number in index.boundaries.groups:
        assert memory.kept[states[0]].present[index.boundaries.members(number), 0].any()


def test_where_all_kinds_grow_the_least_recently_used_chain_goes_first() -> None:
    """Before anything is learned. The first one is used again."""
    traffic = traffic_of("full")
    for name in (*"abcd", "a"):
        traffic.ask(f"{name}{len(traffic.events)}", words(name, 400))
    index, gone = traffic.index, []
    while index.evict(1e-9, must=False).pieces:
        gone += [name for name in "abcd" if name not in gone and len(chain_of(traffic, words(name, 400))) < 50]
    assert gone == ["b", "c", "d", "a"]


def test_a_chain_of_full_attention_gives_way_from_its_end_by_as_much_as_is_asked_for() -> None:
    traffic = traffic_of("full")
    prompt = words("a", 80)
    traffic.ask("a", prompt)
    index, unit_bytes = traffic.index, traffic.index.coverage.bundle_bytes(UNIT)
    assert index.evict(0, must=False).tokens == UNIT, "at least one"
    assert index.evict(2.5 * unit_bytes, must=False).tokens == 3 * UNIT
    assert found(traffic, prompt) == 6 * UNIT
    assert index.evict(100 * unit_bytes, must=False) == (6 * UNIT, 1)
    assert index.evict(100 * unit_bytes, must=False) == (0, 0)
    check_books(traffic.scheduler)


def test_with_boundaries_the_end_of_a_chain_goes_back_to_the_last_place_where_a_hit_can_end() -> None:
    traffic = traffic_of("full", "state")
    first = words("a", 80)
    traffic.ask("a", first)
    traffic.ask("b", joined(first, words("b", 120)))
    index = traffic.index
    drop_unlikely(index)
    places = sorted({int(index.nodes.tokens[node]) for node in index.boundaries.tails})
    assert places[-1] == 200
    hits = [200]
    while index.evict(0, must=False).pieces:
        hits.append(found(traffic, joined(first, words("b", 120))))
        assert hits[-1] in (0, *places)
    assert hits[-1] == 0
    assert hits == sorted(hits, reverse=True)
    assert not len(index.nodes)


def test_recency_evicts_the_least_recently_used_of_thousands() -> None:
    """Each of 2,000 prompts has one unit; half of them are used again, in another order."""
    traffic = traffic_of("full", forecast=Recency(), sheets=9_000, batch_tokens=4096, rows=64)
    prompts = [words(f"r{one}", UNIT + 1) for one in range(2_000)]
    for number, prompt in enumerate(prompts):
        traffic.submit(f"r{number}", prompt)
    traffic.engine.drain()
    index, root = traffic.index, traffic.scheduler.reuse.root_of("")
    chains = [index.nodes.follow(keys_from(root, prompt, UNIT), 1) for prompt in prompts]
    again = Random(1).sample(range(2_000), 1_000)
    for number in again:
        index.uses.note_hit(chains[number])
    place = {chain.item(-1): number for number, chain in enumerate(chains)}
    order = [place[node] for node in taken(index)]
    assert order[1_000:] == again
    assert len(order) == 2_000


def test_what_recency_evicts_is_not_watched_on() -> None:
    """Nothing is learned from it: the exhaustive checker's states must not depend on it."""
    traffic = traffic_of("full", "state", forecast=Recency())
    traffic.ask("a", words("a", 100))
    assert traffic.evict_all()
    assert len(traffic.index.eviction.ghosts) == 0
    learning = traffic_of("full", "state")
    learning.ask("a", words("a", 100))
    assert learning.evict_all()
    assert len(learning.index.eviction.ghosts) > 0


# ── what queued requests await ────────────────────────────────────────────

KINDS = [["full"], ["full", "window"], ["full", "state"]]


def expect(traffic: Traffic, prompt: np.ndarray) -> Place:
    """A queued request would go on from what is found of a prompt."""
    keys = keys_of(traffic, prompt)
    hit = traffic.index.find(keys, traffic.scheduler.reuse.root_of(""), prompt)
    node = traffic.index.expect(hit.chain)
    return Place(node, traffic.index.nodes.key[node])


@pytest.mark.parametrize("kinds", KINDS)
def test_what_is_awaited_goes_after_everything_else(kinds: list[str]) -> None:
    traffic = traffic_of(*kinds)
    prompts = {name: words(name, 100) for name in "abc"}
    for name, prompt in prompts.items():
        traffic.ask(name, prompt)
    expect(traffic, prompts["a"])
    while traffic.index.evict(1e18, must=True).pieces:
        assert found(traffic, prompts["a"]) >= 96
    assert [found(traffic, prompts[name]) for name in "bc"] == [0, 0]
    assert traffic.index.evict(0, must=False, even_awaited=True).pieces
    while traffic.index.evict(1e18, must=False, even_awaited=True).pieces:
        pass
    assert found(traffic, prompts["a"]) == 0
    assert not len(traffic.index.nodes)
    check_books(traffic.scheduler)


@pytest.mark.parametrize("kinds", KINDS)
def test_what_is_awaited_no_longer_goes_like_everything_else(kinds: list[str]) -> None:
    """Two requests await it: it stays until neither does."""
    traffic = traffic_of(*kinds)
    traffic.ask("a", words("a", 100))
    one, other = (expect(traffic, words("a", 100)) for _ in range(2))
    traffic.index.awaited.remove(one)
    while traffic.index.evict(1e18, must=False).pieces:
        pass
    assert found(traffic, words("a", 100)) == 96
    traffic.index.awaited.remove(other)
    while traffic.index.evict(1e18, must=False).pieces:
        pass
    assert not len(traffic.index.nodes)


@pytest.mark.parametrize("kinds", KINDS)
def test_a_chain_is_cut_off_behind_what_is_awaited_on_its_way(kinds: list[str]) -> None:
    """A request awaits the first half of a chain: the second half goes, in one bundle at most."""
    traffic = traffic_of(*kinds)
    traffic.ask("a", words("a", 97))
    traffic.ask("b", joined(words("a", 97), words("b", 103)))
    assert found(traffic, joined(words("a", 97), words("b", 103))) == 200 // UNIT * UNIT
    expect(traffic, words("a", 97))
    for _ in range(20):
        traffic.index.evict(1e18, must=True)
    assert len(chain_of(traffic, joined(words("a", 97), words("b", 103)))) == 12
    assert found(traffic, words("a", 97)) == 96


def test_a_chain_that_is_awaited_in_the_middle_keeps_its_first_half() -> None:
    """All of it was used alike, and would go in one bundle."""
    traffic = traffic_of("full")
    traffic.ask("a", words("a", 200))
    expect(traffic, words("a", 97))
    assert traffic.index.evict(1e18, must=True).tokens == 200 - 96
    assert traffic.index.evict(1e18, must=True).pieces == 0
    assert found(traffic, words("a", 199)) == 96


def test_of_several_that_are_awaited_the_lowest_goes_first_and_one_at_a_time() -> None:
    traffic = traffic_of("full", "state", forecast=ByWorth())
    sizes = (200, 60, 120)
    for size in sizes:
        traffic.ask(f"r{size}", words(f"r{size}", size))
        expect(traffic, words(f"r{size}", size + 1))
    while traffic.index.evict(1e18, must=True).pieces:
        pass
    left = []
    for _ in sizes:
        assert traffic.index.evict(0, must=True, even_awaited=True).pieces == 1
        left.append([size for size in sizes if found(traffic, words(f"r{size}", size))])
    assert left[0] == [200, 120]


def test_evicting_counts_among_the_hot_no_longer() -> None:
    """Of the pool, what queued requests would go on from: at most a quarter, and nothing once it is gone."""
    traffic = traffic_of("full", sheets=100)
    index = traffic.index
    assert index.awaited.share() == 0
    for name in "ab":
        traffic.ask(name, words(name, 81))
    share = 10 * UNIT * traffic.scheduler.plan.bytes_per_token / index.coverage.pool_bytes
    first = Place(*expect(traffic, words("a", 81)))
    assert index.awaited.share() == pytest.approx(share)
    assert index.awaited.share(first) == 0
    again = Place(*expect(traffic, words("a", 81)))
    assert index.awaited.share() == pytest.approx(share), "once, however many await it"
    expect(traffic, words("b", 81))
    assert index.awaited.share() == pytest.approx(2 * share)
    assert index.awaited.share(first) == pytest.approx(share)
    index.awaited.remove(first)
    assert index.awaited.share() == pytest.approx(2 * share)
    index.awaited.remove(again)
    assert index.awaited.share() == pytest.approx(share)
    traffic.evict_all()
    assert index.awaited.share() == 0


def test_admission_leaves_a_quarter_of_the_pool_to_what_is_awaited_at_most() -> None:
    traffic = traffic_of("full", sheets=100)
    for name in "abcde":
        traffic.ask(name, words(name, 81))
        expect(traffic, words(name, 81))
    assert traffic.index.awaited.share() == 0.25


# ── what is in use ────────────────────────────────────────────────────────


def test_what_running_requests_hold_is_set_aside_until_one_has_left() -> None:
    """Evicting it would give nothing back. Others go; once the request has left, it goes too."""
    traffic = traffic_of("full")
    traffic.ask("a", words("a", 97))
    traffic.ask("b", words("b", 97))
    traffic.submit("runs", words("a", 97), 50)
    traffic.step()
    index = traffic.index
    while index.evict(1e18, must=False).pieces:
        pass
    assert len(chain_of(traffic, words("a", 97))) == 12
    assert len(chain_of(traffic, words("b", 97))) == 0
    assert index.evict(1e18, must=False).pieces == 0
    traffic.engine.cancel("runs")
    while index.evict(1e18, must=False).pieces:
        pass
    assert not len(index.nodes)


def test_what_was_found_in_use_is_tried_again_when_a_request_has_left() -> None:
    """A tier was reading it. That it is done is noticed when something else gives pages back, or if it must be."""
    traffic = traffic_of("full", forecast=Recency())
    traffic.ask("a", words("a", 97))
    chain, (memory,) = chain_of(traffic, words("a", 97)), traffic.scheduler.memories
    pages = memory.kept[0].pages[chain].ravel()
    memory.pool.hold(0, pages, Holder.PIN)
    assert traffic.index.evict(1e18, must=False).pieces == 0
    memory.pool.drop(0, pages, Holder.PIN)
    assert traffic.index.evict(1e18, must=False).pieces == 0
    traffic.ask("b", words("b", 4))
    assert traffic.index.evict(1e18, must=False).tokens == 96


def test_if_it_must_be_what_is_held_goes_too() -> None:
    """Behind it may lie nodes whose pages give something back."""
    traffic = traffic_of("full")
    traffic.ask("a", words("a", 97))
    traffic.submit("runs", words("a", 97), 50)
    traffic.step()
    assert traffic.index.evict(0, must=False).pieces == 0
    assert traffic.index.evict(0, must=True).pieces == 1
    traffic.finish()


@pytest.mark.story
def test_the_rank_of_what_was_evicted_last_is_not_that_of_what_is_held() -> None:
    """What a prompt leaves on its way is kept if it is worth more than what was evicted last. That was said to be worth
    as much as what requests were using, and spares were given up for nothing."""
    traffic = traffic_of("full", forecast=Recency())
    traffic.ask("b", words("b", 97))
    traffic.ask("a", words("a", 97))
    index = traffic.index
    rank = float(index.nodes.rank[chain_of(traffic, words("b", 97))[-1]])
    traffic.submit("runs", words("a", 97), 50)
    traffic.step()
    while index.evict(1e18, must=False).pieces:
        pass
    assert index.eviction.last_rank == rank
    traffic.engine.cancel("runs")


# ── values grow old ───────────────────────────────────────────────────────


def test_values_are_computed_anew_after_traffic_of_a_share_of_the_cached_tokens() -> None:
    forecast = ByWorth(learns=True)
    traffic = traffic_of("full", "window", forecast=forecast)
    traffic.ask("a", words("a", 400))
    eviction = traffic.index.eviction
    eviction.compute()
    times, due = forecast.times, FRESH_SHARE * len(traffic.index.nodes) * UNIT
    eviction.now += due
    eviction.lowest(False, False)
    assert forecast.times == times
    eviction.now += 1
    eviction.lowest(False, False)
    assert forecast.times == times + 1
    eviction.lowest(False, False)
    assert forecast.times == times + 1


def test_a_forecast_that_does_not_learn_is_not_asked_again() -> None:
    forecast = ByWorth()
    traffic = traffic_of("full", forecast=forecast)
    traffic.ask("a", words("a", 400))
    traffic.index.eviction.now += 1e9
    traffic.index.eviction.lowest(False, False)
    assert forecast.times == 0


def test_hazards_are_learned_when_values_are_computed_after_enough_uses() -> None:
    traffic = traffic_of("full", "state")
    eviction = traffic.index.eviction
    traffic.ask("a", words("a", 100))
    for number in range(3):
        traffic.ask(f"r{number}", words("a", 100))
    node = chain_of(traffic, words("a", 100)).item(-1)
    before = eviction.forecast.value(eviction.class_of(node), 0.0, 0.0, 1.0)
    eviction.compute()
    assert eviction.forecast.value(eviction.class_of(node), 0.0, 0.0, 1.0) == before, "three uses are too few"
    traffic.ask("r3", words("a", 100))
    eviction.compute()
    assert eviction.forecast.value(eviction.class_of(node), 0.0, 0.0, 1.0) > before


def test_the_heap_is_built_anew_before_it_grows_beyond_what_it_stands_for() -> None:
    """A prefix that is used thousands of times has one place in the order: that of its last use."""
    forecast = ByWorth()
    traffic = traffic_of("full", forecast=forecast)
    for name in "abc":
        traffic.ask(name, words(name, 40))
    index, chain = traffic.index, chain_of(traffic, words("a", 40))
    for _ in range(3_000):
        index.uses.note_hit(chain)
        assert len(index.eviction._ranked) <= 2 * len(index.nodes) + FEW
    assert forecast.times > 10
    assert sorted(taken(index)) == sorted(index.nodes.leaves().tolist())


@pytest.mark.parametrize("kinds", [["full"], ["full", "state"], ["sink", "state"]])
def test_chains_of_leaves_are_those_of_their_nodes(kinds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """However they grew, branched off and were cut off: a remembered path is the one that walking up finds."""
    monkeypatch.setattr(module, "FEW", 0)
    traffic, random = traffic_of(*kinds, sheets=70, max_length=300), Random(3)
    old = [words("r", 100)]
    for number in range(30):
        begin = random.choice(old)
        prompt = joined(begin[: random.randint(0, len(begin))], words(f"r{number}", 60))[:250]
        old.append(prompt)
        traffic.ask(f"r{number}", prompt, random.randint(1, 20))
        index = traffic.index
        assert index.eviction.paths.keys() <= set(index.nodes.leaves().tolist())
        for leaf, path in index.eviction.paths.items():
            assert path.tolist() == index.nodes.path(leaf).tolist()
    assert index.eviction.paths
