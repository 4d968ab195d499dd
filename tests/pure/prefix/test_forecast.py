"""What keeping a prefix is worth: learned from uses, and from ends without a use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from quire.prefix.forecast import (
    BIN_TOKENS,
    BINS,
    CLASSES,
    LEARN_FIRST,
    LEARN_LATER,
    LINES,
    USES,
    Origin,
    Recency,
    ReuseTimes,
    class_of,
)

NOBODY = np.zeros(0, dtype=np.int64), np.zeros(0)
AGES = [1.0, 100.0, 1_000.0, 30_000.0, 150_000.0, 2_000_000.0]


def kind_of(origin: Origin, line: int = 0, uses: int = 0) -> int:
    return int(class_of(np.array(origin), np.array(line), np.array(uses)))


TURN, PROMPT, JUNCTION, SPARE, PASSED, BEYOND = map(kind_of, Origin)


def worth(times: ReuseTimes, kind: int, age: float) -> float:
    """Of a prefix of a class that was last used so long ago."""
    return times.value(kind, 0.0, age, 1.0)


def learned(used: dict[int, list[float]], ended: dict[int, list[float]]) -> ReuseTimes:
    """After uses and ends without a use: ages, by class."""
    times = ReuseTimes()
    for kind, ages in used.items():
        for age in ages:
            times.note_use(kind, age)
    for kind, ages in ended.items():
        for age in ages:
            times.note_end(kind, age)
    times.learn(*NOBODY)
    return times


# ── classes ───────────────────────────────────────────────────────────────


def test_every_origin_line_and_use_has_a_class_of_its_own_up_to_the_last_that_is_told_apart() -> None:
    numbers = [kind_of(origin, line, uses) for origin in Origin for line in range(LINES) for uses in range(USES)]
    assert sorted(numbers) == list(range(CLASSES))
    assert kind_of(Origin.TURN, 100_000, 3) == kind_of(Origin.TURN, LINES - 1, 3)
    assert kind_of(Origin.TURN, 1, 100_000) == kind_of(Origin.TURN, 1, USES - 1)


# ── before anything was learned ───────────────────────────────────────────


@pytest.mark.parametrize("kind", range(0, CLASSES, 5))
def test_before_anything_is_learned_what_is_older_is_worth_less(kind: int) -> None:
    values = [worth(ReuseTimes(), kind, age) for age in AGES[1:]]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == len(values)
    assert values[-1] > 0


def test_before_anything_is_learned_places_where_prompts_part_are_worth_most_and_spares_least() -> None:
    """Junctions, ends of turns, ends of prompts, passed ends, spares: at each age."""
    for age in AGES:
        values = [worth(ReuseTimes(), kind, age) for kind in (JUNCTION, TURN, PROMPT, PASSED, SPARE)]
        assert values == sorted(values, reverse=True)
        assert len(set(values)) == len(values)


# ── what is learned ───────────────────────────────────────────────────────


def test_what_is_used_soon_is_worth_more_than_what_is_used_late_and_that_more_than_what_never_is() -> None:
    times = learned({PROMPT: [200.0] * 500, TURN: [150_000.0] * 500}, {JUNCTION: [400_000.0] * 500})
    assert worth(times, PROMPT, 1) > 100 * worth(times, TURN, 1)
    assert worth(times, TURN, 1) > 2 * worth(times, JUNCTION, 1) > 0


def test_classes_learn_each_from_their_own_prefixes() -> None:
    """What is seen of prompts says nothing of turns: those of another origin keep their first value."""
    before, after = ReuseTimes(), learned({PROMPT: [200.0] * 50}, {SPARE: [150_000.0] * 50})
    assert worth(after, PROMPT, 1) > worth(before, PROMPT, 1)
    assert worth(after, SPARE, 1) < worth(before, SPARE, 1)
    for age in AGES:
        assert worth(after, TURN, age) == pytest.approx(worth(before, TURN, age))


def test_a_class_that_was_never_seen_is_taken_for_others_of_its_origin() -> None:
    """Turns with one turn before them were seen, those with two were not."""
    seen, unseen = kind_of(Origin.TURN, 1), kind_of(Origin.TURN, 2)
    before = worth(ReuseTimes(), unseen, 1)
    often, never = learned({seen: [200.0] * 50}, {}), learned({}, {seen: [400_000.0] * 50})
    assert worth(never, unseen, 1) < before < worth(often, unseen, 1)


def test_the_fewer_observations_the_nearer_a_value_is_to_what_it_was() -> None:
    """What is known of a wider class counts as three prefixes: one use or end does not decide alone."""
    before = worth(ReuseTimes(), TURN, 1)
    used = [worth(learned({TURN: [200.0] * count}, {}), TURN, 1) for count in (1, 10, 1000)]
    assert before < used[0] < used[1] < used[2]
    assert used[0] < 0.7 * used[2]
    ended = [worth(learned({}, {TURN: [400_000.0] * count}), TURN, 1) for count in (1, 10, 1000)]
    assert before > ended[0] > ended[1] > ended[2]
    assert ended[0] > 100 * ended[2]


def test_traffic_that_comes_round_in_turn_makes_what_is_older_worth_more() -> None:
    """All are used again at the same age: the nearer that is, the less time it takes to keep one."""
    times = learned({TURN: [100_000.0] * 500}, {})
    values = [worth(times, TURN, age) for age in (1.0, 20_000.0, 60_000.0)]
    assert values == sorted(values)
    assert values[-1] > 1.5 * values[0]


def test_what_is_used_soon_or_never_is_worth_less_with_age() -> None:
    times = learned({TURN: [150.0] * 200}, {TURN: [400_000.0] * 200})
    values = [worth(times, TURN, age) for age in (1.0, 1_000.0, 30_000.0, 300_000.0)]
    assert values == sorted(values, reverse=True)
    assert values[0] > 100 * values[1]


def test_ages_that_nearly_no_prefix_was_watched_to_are_not_taken_to_be_better_than_the_last_known_one() -> None:
    """Thousands ended after 2,000 tokens; one that was used after a million is no reason to keep them all that long."""
    times = learned({TURN: [1_000_000.0]}, {TURN: [2_000.0] * 5_000})
    assert worth(times, TURN, 900_000) < worth(times, TURN, 1_000)
    assert worth(times, TURN, 900_000) < worth(ReuseTimes(), TURN, 900_000)


def test_an_end_counts_against_the_ages_that_were_reached_and_no_further_ones() -> None:
    """A prefix that was watched for 1,000 tokens says nothing of what happens after 100,000."""
    before, after = ReuseTimes(), learned({}, {TURN: [1_000.0] * 3})
    assert worth(after, TURN, 100) < 0.9 * worth(before, TURN, 100)
    for age in (2_000.0, 100_000.0):
        assert worth(after, TURN, age) == pytest.approx(worth(before, TURN, age))


def test_prefixes_that_are_still_watched_count_as_not_used_up_to_now() -> None:
    """Those in the cache for long without a use are known to be of little worth, before they are evicted."""
    kinds, ages = np.full(200, TURN), np.full(200, 150_000.0)
    times, ended = ReuseTimes(), ReuseTimes()
    times.learn(kinds, ages)
    for _ in range(200):
        ended.note_end(TURN, 150_000.0)
    ended.learn(*NOBODY)
    for age in AGES:
        assert worth(times, TURN, age) == pytest.approx(worth(ended, TURN, age))
    assert worth(times, TURN, 1) < worth(ReuseTimes(), TURN, 1)
    times.learn(*NOBODY)
    assert worth(times, TURN, 1) == pytest.approx(worth(ReuseTimes(), TURN, 1)), "they are not counted twice"


def test_what_was_learned_long_ago_gives_way_to_what_is_seen_now() -> None:
    """Once used soon and then never again: after some thousand uses of others the first finding has faded."""
    times = learned({TURN: [200.0] * 1000}, {})
    high = worth(times, TURN, 1)
    for _ in range(40):
        for _ in range(500):
            times.note_use(SPARE, 200.0)
            times.note_end(TURN, 400_000.0)
        times.learn(*NOBODY)
    assert worth(times, TURN, 1) < high / 100


def test_ends_of_long_ago_do_not_hide_that_a_class_is_used_now() -> None:
    times = learned({}, {TURN: [400_000.0] * 5_000})
    for _ in range(40):
        for _ in range(500):
            times.note_use(SPARE, 200.0)
        times.learn(*NOBODY)
    for _ in range(200):
        times.note_use(TURN, 200.0)
    times.learn(*NOBODY)
    assert worth(times, TURN, 1) == pytest.approx(worth(learned({TURN: [200.0] * 200}, {}), TURN, 1), rel=0.2)


def test_hazards_are_due_after_a_few_uses_at_first_and_after_more_and_more_later() -> None:
    times, waits = ReuseTimes(), []
    for _ in range(10):
        uses = 0
        while not times.is_stale:
            times.note_use(TURN, 1_000.0)
            uses += 1
        waits.append(uses)
        times.learn(*NOBODY)
    assert waits[:3] == [LEARN_FIRST, 2 * LEARN_FIRST, 4 * LEARN_FIRST]
    assert waits[-3:] == [LEARN_LATER] * 3


def test_ends_without_a_use_alone_do_not_make_hazards_due() -> None:
    times = ReuseTimes()
    for _ in range(1000):
        times.note_end(TURN, 100.0)
    assert not times.is_stale


# ── values ────────────────────────────────────────────────────────────────

seen = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.floats(0, 1e9), st.booleans()), max_size=40)
asked = st.lists(
    st.tuples(st.integers(0, CLASSES - 1), st.floats(0, 1e9), st.floats(1e-9, 1e3)), min_size=1, max_size=20
)


@pytest.mark.law
@examples(60)
@given(seen, asked, st.floats(0, 1e9))
def test_many_values_are_the_values_of_each(
    seen: list[tuple[int, float, bool]], asked: list[tuple[int, float, float]], later: float
) -> None:
    """Whatever was learned, at every age; none is negative or infinite."""
    times = ReuseTimes()
    for kind, age, is_use in seen:
        (times.note_use if is_use else times.note_end)(kind, age)
    times.learn(*NOBODY)
    now = max(used for _, used, _ in asked) + later
    classes, used, worths = map(np.array, zip(*asked, strict=True))
    together = times.values(classes, used.astype(float), now, worths.astype(float))
    assert together.tolist() == pytest.approx([times.value(kind, at, now, each) for kind, at, each in asked], rel=1e-9)
    assert (together > 0).all()
    assert np.isfinite(together).all()


def test_a_value_is_in_proportion_to_what_is_saved_per_byte() -> None:
    times = ReuseTimes()
    assert times.value(TURN, 0.0, 500.0, 3e-3) == pytest.approx(3 * times.value(TURN, 0.0, 500.0, 1e-3))


def test_ages_below_the_first_and_beyond_the_last_are_worth_what_those_are() -> None:
    times, last = ReuseTimes(), BIN_TOKENS * 2 ** ((BINS - 1) / 2)
    assert worth(times, TURN, 0) == worth(times, TURN, 1) == worth(times, TURN, BIN_TOKENS)
    assert worth(times, TURN, last) == worth(times, TURN, 1e15) > 0
    times.note_use(TURN, 1e15)
    times.note_end(TURN, 1e15)
    times.learn(np.array([TURN]), np.array([1e15]))
    assert 0 < worth(times, TURN, 1e15) < np.inf


def test_recency_orders_by_the_last_use_alone() -> None:
    """Class, worth and what was noted change nothing; many values are the values of each."""
    forecast, generator = Recency(), np.random.default_rng(0)
    used = generator.permutation(3000).astype(float) + 1e6
    classes, worths = generator.integers(0, CLASSES, 3000), generator.random(3000)
    for kind in range(CLASSES):
        forecast.note_use(kind, 10.0)
        forecast.note_end(kind, 10.0)
    values = forecast.values(classes, used, 2e6, worths)
    assert values.argsort().tolist() == used.argsort().tolist()
    assert values[:9].tolist() == [
        forecast.value(*one) for one in zip(classes[:9], used[:9], [2e6] * 9, worths[:9], strict=True)
    ]
    assert not forecast.learns
    assert ReuseTimes().learns
