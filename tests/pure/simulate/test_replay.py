"""The real engine on virtual time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_replay import SPEED, asked, cost_of, plan_of, play, seconds_of

from quire.core.rules import Rules
from quire.plan.settings import Settings
from quire.prefix.gap import CAUSES
from quire.simulate.ceiling import Ceiling
from quire.simulate.cost import CostModel
from quire.simulate.devices import Speed
from quire.simulate.replay import Played
from quire.simulate.report import report
from quire.simulate.synthetic import SORTS, make_trace
from quire.simulate.tokens import seed_of


def waits(played: Played) -> list[float]:
    return [float(one) for one in played.recorder.first - played.recorder.arrived]


def test_a_lone_request_waits_for_its_prompt_and_then_for_each_token() -> None:
    plan = plan_of()
    cost = cost_of(plan)
    played = play(asked("a", 5.0, (1, 0, 300), output=4), plan=plan, cost=cost)
    steps = [seconds_of(cost, (0, 300)), *(seconds_of(cost, (300 + one, 1)) for one in range(3))]
    assert waits(played) == [pytest.approx(steps[0])]
    assert played.recorder.gaps[: played.recorder.gap_count].tolist() == pytest.approx(steps[1:])
    assert played.seconds == pytest.approx(sum(steps))
    assert played.busy_seconds == pytest.approx(sum(steps))


def test_time_to_first_token_includes_queueing() -> None:
    plan = plan_of(settings=Settings(max_requests=1))
    played = play(asked("a", 0.0, (1, 0, 64), output=50), asked("b", 0.0, (2, 0, 64), output=1), plan=plan)
    end_of_first = played.recorder.last[0]
    assert waits(played)[1] > end_of_first > 50 * 1e-3


def test_the_clock_jumps_over_idle_time() -> None:
    played = play(asked("a", 0.0, (1, 0, 64)), asked("b", 1000.0, (2, 0, 64)))
    assert 1000 < played.seconds < 1001
    assert played.busy_seconds < 1
    assert waits(played)[0] == pytest.approx(waits(played)[1])


def test_a_turn_comes_its_thinking_time_after_the_last_answer() -> None:
    first = asked("a", 0.0, (1, 0, 640), output=65)
    turn = asked("b", 3.0, (1, 0, 640), (seed_of("a"), 640, 65), (2, 0, 10), after=0)
    played = play(first, turn)
    assert played.recorder.arrived[1] == pytest.approx(played.recorder.last[0] + 3.0)
    assert played.recorder.hit_tokens[1] == 704
    assert played.ceiling_tokens == 704


def test_the_ceiling_of_a_trace_made_by_hand_is_known() -> None:
    """Units of 64: b shares 128 of 200 with a, c all but its last token of a's 300: 256, d nothing."""
    shared = (1, 0, 130)
    played = play(
        asked("a", 0.0, shared, (2, 0, 170)),
        asked("b", 1.0, shared, (3, 0, 70)),
        asked("c", 2.0, shared, (2, 0, 170)),
        asked("d", 3.0, (9, 0, 500)),
    )
    assert played.match_unit_tokens == 64
    assert played.ceiling_tokens == 128 + 256
    assert played.recorder.hit_tokens.tolist() == [0, 128, 256, 0]


def test_a_prompt_of_whole_units_computes_its_last_one() -> None:
    ceiling = Ceiling(64)
    prompt = np.arange(128, dtype=np.int32)
    answer = np.arange(3, dtype=np.int32)
    assert [ceiling.of(prompt, answer), ceiling.of(prompt, answer)] == [0, 64]


def test_where_hits_may_end_between_units_the_end_of_a_turn_counts() -> None:
    """A request of 100 + 11 tokens, the last of them not computed: 110 can be reused, 64 without ends."""
    first, answer = np.arange(100, dtype=np.int32), np.arange(200, 211, dtype=np.int32)
    again = np.concatenate([first, answer, answer])
    for has_ends, reusable in ((True, 110), (False, 64)):
        ceiling = Ceiling(64, has_ends)
        assert [ceiling.of(first, answer), ceiling.of(again, answer)] == [0, reusable]


def test_the_order_of_units_matters_to_the_ceiling() -> None:
    ceiling = Ceiling(2)
    assert ceiling.of(np.array([1, 2, 3, 4, 5], np.int32), np.array([9], np.int32)) == 0
    assert ceiling.of(np.array([3, 4, 1, 2, 5], np.int32), np.array([9], np.int32)) == 0
    assert ceiling.of(np.array([1, 2, 9, 9, 9], np.int32), np.array([9], np.int32)) == 2


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("pool_bytes", [1 << 32, 1 << 30])
def test_made_up_traces_run_and_no_cache_beats_the_ceiling(sort: str, pool_bytes: int) -> None:
    trace = make_trace(sort, 30, 5)
    found = report(play(*trace.requests, plan=plan_of(pool_bytes)))
    assert found["finished"] == 30
    assert found["hit_rate"] <= found["hit_rate_ceiling"]
    assert found["output_tokens"] == sum(one.output_tokens for one in trace.requests)


def test_requests_that_never_fit_are_counted_and_their_next_turns_with_them() -> None:
    plan = plan_of(settings=Settings(max_length=1000))
    long, turn = asked("a", 0.0, (1, 0, 2000)), asked("b", 1.0, (1, 0, 2000), (2, 0, 5), after=0)
    played = play(long, turn, asked("c", 0.5, (3, 0, 100)), plan=plan)
    found = report(played)
    assert (found["finished"], found["refused"], found["output_tokens"]) == (1, 2, 8)


def test_a_trace_of_which_nothing_fits_has_a_report() -> None:
    found = report(play(asked("a", 0.0, (1, 0, 2000)), plan=plan_of(settings=Settings(max_length=1000))))
    assert (found["finished"], found["refused"]) == (0, 1)
    assert found["seconds_to_first_token"]["p50"] is None


def test_who_finds_the_queue_full_comes_again_and_has_waited_meanwhile() -> None:
    plan = plan_of(settings=Settings(max_requests=1))
    requests = [asked(f"r{one}", 0.0, (one, 0, 64)) for one in range(6)]
    played = play(*requests, plan=plan, rules=Rules(queue_bound=2))
    assert report(played)["finished"] == 6
    assert played.turned_away > 0
    assert sorted(waits(played)) == waits(played)


def test_a_preempted_request_yields_each_token_once() -> None:
    plan = plan_of(pool_bytes=64 << 20)
    requests = [asked(f"r{one}", 0.0, (one, 0, 300), output=400) for one in range(8)]
    played = play(*requests, plan=plan)
    assert played.recorder.preemptions > 0
    assert played.recorder.output_tokens == 8 * 400
    assert played.recorder.gap_count == 8 * 399
    assert (played.recorder.gaps[: played.recorder.gap_count] > 0).all()


def test_answers_do_not_depend_on_who_else_is_there() -> None:
    """The next turn was written down beforehand, so it is found in the cache only if the answer came out like that."""
    crowd = [asked(f"r{one}", 0.0, (one, 0, 300 + one), output=20 + 7 * one) for one in range(10)]
    first = asked("a", 0.01, (11, 0, 640), output=65)
    turn = asked("b", 3.0, (11, 0, 640), (seed_of("a"), 640, 65), (12, 0, 10), after=10)
    assert play(*crowd, first, turn).recorder.hit_tokens[11] == 704


def test_twice_the_bandwidth_is_not_slower() -> None:
    trace = make_trace("chat", 12, 1)
    plan = plan_of()
    slow, fast = (report(play(*trace.requests, plan=plan, cost=cost)) for cost in two_speeds(cost_of(plan)))
    assert fast["seconds_between_tokens"]["p50"] < slow["seconds_between_tokens"]["p50"]
    assert fast["virtual_seconds"] <= slow["virtual_seconds"]


def two_speeds(cost: CostModel) -> tuple[CostModel, CostModel]:
    return cost, replace(cost, speed=Speed(2 * SPEED.bytes_per_second, SPEED.flops_per_second))


def test_memory_is_what_requests_hold_and_the_cache_keeps() -> None:
    plan = plan_of()
    (line,) = report(play(asked("a", 0.0, (1, 0, 640), output=64), plan=plan))["memory"]
    page = plan.stages[0].kinds[0].page_tokens
    assert 640 // page <= line["held_peak_pages"] <= 704 // page
    assert line["cached_peak_pages"] == 640 // page
    assert line["held_peak_bytes"] == line["held_peak_pages"] * line["page_bytes"]
    assert 0 < line["held_mean_pages"] <= line["held_peak_pages"]


def test_shares_of_prompts_that_were_missed_are_reported_by_cause() -> None:
    """One prompt pushes most of another one out of the pool, which comes again: a third of all prompt tokens, but for
    its last unit, was found or evicted."""
    plan = plan_of(pool_bytes=48 << 20, settings=Settings(max_length=1200))
    requests = [asked(f"r{place}", 10.0 * place, (seed, 0, 1000)) for place, seed in enumerate((1, 2, 1))]
    found = report(play(*requests, plan=plan))
    unit, missed = found["match_unit_tokens"], found["missed"]
    assert missed["evicted"] > 0.1
    assert found["hit_rate"] + missed["evicted"] == pytest.approx(999 // unit * unit / 3000)
    assert [cause for cause, share in missed.items() if share] == ["evicted"]
    assert list(missed) == list(CAUSES)
