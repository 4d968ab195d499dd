"""Workloads, pools and figures of bench/reuse.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from quire.core.request import Tokens
from quire.kinds.full import Full
from quire.kinds.state import State
from quire.kinds.window import Window
from quire.simulate.tokens import Recipe
from quire.simulate.traces import Asked, Trace, read_trace
from reuse_drive import drive
from reuse_lru import LruServer
from reuse_pools import (
    MODELS,
    PAGE,
    cost_of,
    kinds_of,
    least_pool_bytes,
    page_names,
    plan_of,
    seconds_per_token,
    shared_prefixes,
    working_set_bytes,
)
from reuse_quire import Chunk, play, unsplit_seconds
from reuse_workloads import LONGEST_PROMPT, WORKLOADS, Work, arrivals, make_work, order_of, paced, stretch, work_of

KINDS = {
    "full": SimpleNamespace(kind=Full(), page_tokens=16, page_bytes=32, groups=1, fixed_bytes=0),
    "window": SimpleNamespace(kind=Window(40), page_tokens=16, page_bytes=48, groups=2, fixed_bytes=0),
    "state": SimpleNamespace(kind=State(), page_tokens=1, page_bytes=500, groups=2, fixed_bytes=1000),
}


def small_work(seed: int, count: int = 30) -> Work:
    """Requests of up to 150 tokens over a handful of common beginnings; answers may be gone on from."""
    random = np.random.default_rng(seed)
    known: list[Tokens] = []
    asked, prompts = [], []
    for place in range(count):
        begin = known[random.integers(len(known))] if known and random.random() < 0.8 else np.empty(0, np.int32)
        alike = begin[: int(random.integers(0, len(begin) + 1))]
        own = random.integers(0, 3, int(random.integers(2, 40))).astype(np.int32)
        known.append(np.concatenate([alike, own])[-150:])
        prompts.append(int(random.integers(1, len(known[-1]))))
        asked.append(
            Asked(str(place), Recipe.of([(place, 0, prompts[-1])]), len(known[-1]) - prompts[-1], float(place))
        )
    return Work(Trace("small", tuple(asked)), tuple(known), tuple(prompts))


def alike(one: Tokens, two: Tokens) -> int:
    """Token by token."""
    most = min(len(one), len(two))
    return next((i for i in range(most) if one[i] != two[i]), most)


@pytest.mark.law
@pytest.mark.parametrize("seed", range(10))
def test_the_longest_shared_prefix_is_that_of_comparing_all_pairs(seed: int) -> None:
    """Of a prompt without its last token, with everything an earlier request computed: all but its last token."""
    work = small_work(seed)
    found = {one.place: one.tokens for one in shared_prefixes(work)}
    for place, known in enumerate(work.known):
        prompt = known[: work.prompts[place] - 1]
        assert found[place] == max((alike(prompt, one[:-1]) for one in work.known[:place]), default=0)


@pytest.mark.law
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("mix", [("full",), ("full", "window"), ("full", "state")])
def test_the_working_set_is_that_of_marking_every_token(seed: int, mix: tuple[str, ...]) -> None:
    """By hand: every token of a shared prefix that a hit at its end reads, named by all tokens up to the end of its
    page or of the prefix, whichever comes first."""
    work = small_work(seed)
    plan = SimpleNamespace(stages=[SimpleNamespace(kinds=[KINDS[name] for name in mix])])
    pages: set[tuple[str, bytes]] = set()
    for one in shared_prefixes(work):
        prefix = work.known[one.place][: one.tokens]
        for name in mix if one.tokens else ():
            if name == "state":
                pages.add((name, prefix.tobytes()))
                continue
            for token in range(one.tokens):
                if name == "full" or token >= one.tokens - 39:
                    pages.add((name, prefix[: (token // 16 + 1) * 16].tobytes()))
    bytes_of = {"full": 32, "window": 2 * 48, "state": 1000}
    assert working_set_bytes(plan, work) == sum(bytes_of[name] for name, _ in pages)


def test_names_of_pages_are_those_of_whole_prefixes() -> None:
    one, two = np.arange(70, dtype=np.int32), np.arange(70, dtype=np.int32)
    two[20] = 7
    assert len(page_names(one)) == 70 // PAGE
    assert page_names(one)[0] == page_names(two)[0]
    assert not set(page_names(one)[1:]) & set(page_names(two)[1:])
    swapped = np.concatenate([one[16:32], one[:16], one[32:]])
    assert not set(page_names(one)) & set(page_names(swapped))


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "conversation"])
def test_a_workload_is_the_same_for_the_same_seed_and_another_for_another(name: str) -> None:
    one, same, other = (make_work(name, seed, Path("none")) for seed in (0, 0, 1))
    assert len(one.known) == WORKLOADS[name].requests
    assert all(np.array_equal(a, b) for a, b in zip(one.known, same.known, strict=True))
    assert [asked.seconds for asked in one.trace.requests] == [asked.seconds for asked in same.trace.requests]
    assert one.prompt_tokens != other.prompt_tokens


def conversation(path: Path, count: int) -> Path:
    lines = [
        {"timestamp": 3000 * one, "input_length": 512 * (1 + one % 40), "output_length": 100, "hash_ids": ids}
        for one in range(count)
        for ids in [list(range(one, one + 1 + one % 40))]
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_stretch_of_a_trace_is_consecutive_and_starts_at_nought(tmp_path: Path) -> None:
    trace = read_trace(conversation(tmp_path / "t.jsonl", 200), None)
    begins = set()
    for seed in range(5):
        chosen = stretch(trace, 50, seed).requests
        assert len(chosen) == 50
        assert chosen[0].seconds == 0
        assert max(asked.recipe.tokens for asked in chosen) <= LONGEST_PROMPT
        numbers = [int(asked.name[1:]) for asked in chosen]
        short = [place for place, asked in enumerate(trace.requests) if asked.recipe.tokens <= LONGEST_PROMPT]
        assert numbers == short[short.index(numbers[0]) :][:50]
        begins.add(numbers[0])
    assert len(begins) > 1


def test_next_turns_come_after_what_they_go_on_from() -> None:
    pieces = Recipe.of([(1, 0, 10)])
    requests = [
        Asked("a", pieces, 1, 5.0),
        Asked("b", pieces, 1, 1.0, after=0),
        Asked("c", pieces, 1, 2.0),
        Asked("d", pieces, 1, 0.5, after=1),
    ]
    assert arrivals(requests) == [5.0, 6.0, 2.0, 6.5]
    assert order_of(requests) == [2, 0, 1, 3]


def test_a_pace_is_what_the_device_could_compute_in_that_time() -> None:
    """30 requests; at a load of 2 they come in half the time that their prompts take without reuse."""
    work = small_work(0)
    quick = paced(work, 2.0, 0.25)
    assert max(arrivals(quick.trace.requests)) == pytest.approx(work.prompt_tokens * 0.25 / 2)
    assert paced(work, None, 0.25) is work


@pytest.mark.parametrize("name", MODELS)
def test_the_least_pool_runs_the_longest_request_and_a_smaller_one_does_not(name: str) -> None:
    least = least_pool_bytes(name, 5000)
    plan = plan_of(name, 5000, least)
    assert plan.fits
    assert not plan_of(name, 5000, least - plan.stages[0].sheet_bytes).fits


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.has_states])
def test_states_of_the_baselines_are_a_block_of_the_peer_apart(name: str) -> None:
    """The fewest multiples of 16 tokens whose attention, in one layer, takes no fewer bytes than a state does."""
    full, state = kinds_of(plan_of(name, 5000, 1 << 35))
    token_bytes, state_bytes = full.token_bytes / full.slots, state.fixed_bytes / state.slots
    block = MODELS[name].state_block
    assert block % PAGE == 0
    assert (block - PAGE) * token_bytes < state_bytes <= block * token_bytes


def test_prompts_in_full_chunks_cost_no_more_than_they_do() -> None:
    """A prompt of 5,000 tokens in chunks of the budget: nothing is split. Cut in two where it need not be: one more
    step, and its overhead."""
    cost = cost_of("llama-3.1-8b", plan_of("llama-3.1-8b", 5000, 1 << 34))
    whole = [Chunk(0, 0, 0, 0, 2048), Chunk(1, 0, 0, 2048, 2048), Chunk(2, 0, 0, 4096, 904)]
    split = [Chunk(0, 0, 0, 0, 1000), Chunk(1, 0, 0, 1000, 2048), Chunk(2, 0, 0, 3048, 1952)]
    seconds = [
        cost.seconds(np.array([start]), np.array([count]), samples)
        for start, count, samples in ((0, 2048, 0), (2048, 2048, 0), (4096, 904, 1))
    ]
    for chunks in (whole, split):
        assert unsplit_seconds(chunks, [0, 0, 0], cost, 2048) == pytest.approx(sum(seconds))


def test_a_prompt_that_is_preempted_is_computed_twice() -> None:
    cost = cost_of("llama-3.1-8b", plan_of("llama-3.1-8b", 5000, 1 << 34))
    chunks = [Chunk(0, 7, 0, 0, 100), Chunk(1, 7, 1, 64, 136)]
    first = cost.seconds(np.array([0]), np.array([100]), 1)
    again = cost.seconds(np.array([64]), np.array([136]), 1)
    assert unsplit_seconds(chunks, [0, 0], cost, 2048) == pytest.approx(first + again)


def test_decoding_rows_take_their_part_of_the_budget() -> None:
    """A step with 1,000 tokens of others has 1,048 for a prompt."""
    cost = cost_of("llama-3.1-8b", plan_of("llama-3.1-8b", 5000, 1 << 34))
    chunks = [Chunk(0, 0, 0, 0, 500), Chunk(1, 0, 0, 500, 1500)]
    seconds = [cost.seconds(np.array([s]), np.array([n]), last) for s, n, last in ((0, 1048, 0), (1048, 952, 1))]
    assert unsplit_seconds(chunks, [1000, 0], cost, 2048) == pytest.approx(sum(seconds))


def test_a_server_that_computes_nothing_is_reported() -> None:
    """It holds a request, and nobody else comes."""
    cost = cost_of("llama-3.1-8b", plan_of("llama-3.1-8b", 5000, 1 << 34))
    server = LruServer(kinds_of(plan_of("llama-3.1-8b", 5000, 1 << 34)), 1e9)
    server.schedule = lambda: None  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="stalled: 30 requests wait"):
        drive(server, cost, small_work(0))


def test_quire_and_the_baseline_see_the_same_requests() -> None:
    """One session after another with room for all: both find what the last turn left, up to a unit or a page."""
    sizes = replace(WORKLOADS["sessions"], requests=40)
    work = paced(_first(make_work("sessions", 1, Path("none")), sizes.requests), None, 1.0)
    plan = plan_of("llama-3.1-8b", work.longest, 1 << 37)
    cost = cost_of("llama-3.1-8b", plan)
    assert seconds_per_token(cost) > 0
    ours = play(plan, cost, work)
    theirs = drive(LruServer(kinds_of(plan), plan.stages[0].pool_bytes), cost, work)
    possible = sum(one.tokens for one in shared_prefixes(work))
    unit = plan.reuse_unit_tokens
    assert possible - 40 * unit < ours.hit_tokens <= possible
    assert possible - 40 * PAGE < theirs.hit_tokens <= possible
    assert ours.prefill_seconds == pytest.approx(ours.unsplit_seconds)


def _first(work: Work, count: int) -> Work:
    return work_of(Trace("some", work.trace.requests[:count]))
