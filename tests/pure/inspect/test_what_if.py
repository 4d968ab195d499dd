"""What if: the planner's own answers for another pool and another width of keys and values."""

from __future__ import annotations

from dataclasses import replace

from quire.core.dtypes import DType
from quire.core.units import format_bytes
from quire.inspect.what_if import what_if_document
from quire.models.read import read_model
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings

MODEL = read_model("gemma-3-27b")
POOL = 64 << 30
PLAN = make_plan(MODEL, Settings(), Budget(pool_bytes=POOL))


def by_option(table: dict[str, list[int]]) -> dict[str, tuple[int, int]]:
    return {str(one): pair for one, *pair in zip(table["option"], table["requests"], table["max_length"], strict=True)}  # type: ignore[misc]


def test_each_answer_is_that_of_a_plan_made_so() -> None:
    """Requests at 8k, and the longest length, as the planner counts them from the model."""
    found = by_option(what_if_document(PLAN, 8192, 5 << 30, MODEL)["table"])
    asked = {
        "as planned": (Settings(), POOL),
        "half the pool": (Settings(), PLAN.stages[0].sheets // 2 * PLAN.stages[0].sheet_bytes),
        "twice the pool": (Settings(), 2 * PLAN.stages[0].pool_bytes),
        "--pool 5.00 GiB": (Settings(), 5 << 30),
        "--kv-dtype fp8": (replace(Settings(), kv_dtype=DType.FP8), POOL),
    }
    assert set(found) == set(asked)
    for option, (settings, pool) in asked.items():
        plan = make_plan(MODEL, settings, Budget(pool_bytes=pool))
        assert list(found[option]) == [bound.concurrency(plan, 8192), plan.max_length], option


def test_a_pool_of_any_size_has_an_answer() -> None:
    """From none that holds anything to one of a pebibyte."""
    for pool_bytes in (1, 1 << 50):
        found = by_option(what_if_document(PLAN, 8192, pool_bytes, MODEL)["table"])
        requests, longest = found[f"--pool {format_bytes(pool_bytes)}"]
        assert (requests == 0) == (longest == 0) == (pool_bytes == 1)


def test_without_a_configuration_only_the_pool_is_asked_about() -> None:
    """A recording has a plan, and no model to plan again."""
    assert [one for one in what_if_document(PLAN, 8192)["table"]["option"] if one.startswith("--kv")] == []


def test_a_model_whose_plan_is_another_is_not_asked() -> None:
    other = read_model("llama-3.1-8b")
    assert set(by_option(what_if_document(PLAN, 8192, None, other)["table"])) == {
        "as planned",
        "half the pool",
        "twice the pool",
    }
