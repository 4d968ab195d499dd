"""Prompts that an engine computes for another one: held until they are fetched or given up, or refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quire.engine.engine import Engine
from quire.handover.peer import Offer, PrefillJob, PromptRefused
from quire.handover.prefill_side import Prefills
from quire.plan.plan import Plan
from quire.plan.records import Records, size_bytes
from quire.tiers.stack import Stack
from scenes_of_tiers import LAYOUT, Bytes, CheckingRunner, small_plan

PLAN = small_plan(["full", "window"])
UNIT = PLAN.reuse_unit_tokens
PROMPT = np.arange(8 * UNIT + 1, dtype=np.int32)


class Computing:
    def __init__(self, blocks: int = 64, plan: Plan = PLAN, wake: Callable[[], None] | None = None) -> None:
        records = Records(plan)
        memory = Bytes(blocks, records.block_bytes)
        self.stack = Stack(records, memory, [], LAYOUT, wake=wake)
        self.engine = Engine(plan, CheckingRunner(plan, self.stack, memory), tier=self.stack, keeper=self.stack)
        self.prefills = Prefills(plan, self.engine, self.stack)

    def finish(self, job: PrefillJob) -> None:
        while not job.is_over.is_set():
            self.prefills.turn()
            self.engine.step()

    def pins(self) -> int:
        return sum(record.pins for record in self.stack.held.cache._records.values())


def test_a_prompt_is_held_from_when_it_is_computed_until_it_is_given_up() -> None:
    computing, records = Computing(), Records(PLAN)
    job = computing.prefills.ask("tenant", PROMPT, 5.0)
    computing.finish(job)
    assert isinstance(job.answer, Offer)
    assert job.answer.tokens == len(PROMPT) - 1
    sizes = [sum(map(len, parts)) for parts in job.answer.records]
    assert sizes == [records.unit_bytes] * 8 + [size_bytes(records.at(8 * UNIT))]
    assert computing.pins() == 9
    computing.prefills.give_up(job)
    computing.prefills.turn()
    assert not computing.pins()
    assert not len(computing.prefills)
    computing.stack.close()


def test_only_a_turn_of_the_loop_counts_as_a_turn() -> None:
    computing = Computing()
    begun = computing.prefills.turned_at
    computing.prefills.give_up(computing.prefills.ask("", PROMPT, 5.0))
    assert computing.prefills.turned_at == begun
    computing.prefills.turn()
    assert computing.prefills.turned_at > begun
    computing.stack.close()


def test_the_same_prompt_twice_is_held_twice_and_in_another_scope_computed_again() -> None:
    computing = Computing()
    for scope in ("a", "a", "b"):
        computing.finish(computing.prefills.ask(scope, PROMPT, 5.0))
    assert computing.pins() == 3 * 9
    assert sum(record.pins > 0 for record in computing.stack.held.cache._records.values()) == 2 * 9
    computing.stack.close()


@pytest.mark.parametrize(
    ("blocks", "prompt", "said"),
    [
        (9, PROMPT, "blocks of host memory, and 4 at most may wait to be fetched: raise --host-memory"),
        (20, PROMPT, "blocks of host memory, and 10 at most may wait to be fetched: raise --host-memory"),
        (64, np.arange(PLAN.max_length + 1, dtype=np.int32), "can never run"),
    ],
)
def test_what_cannot_be_offered_is_answered_with_the_reason(blocks: int, prompt: np.ndarray, said: str) -> None:
    computing = Computing(blocks)
    job = computing.prefills.ask("", prompt, 5.0)
    computing.finish(job)
    assert isinstance(job.answer, PromptRefused)
    assert said in job.answer.reason
    assert not computing.pins()
    assert not len(computing.prefills)
    computing.stack.close()


@pytest.mark.story
def test_a_prompt_that_host_memory_could_never_hold_is_refused_before_it_is_computed() -> None:
    computing = Computing(blocks=20)
    job = computing.prefills.ask("", PROMPT, 5.0)
    computing.prefills.turn()
    assert job.is_over.is_set()
    assert isinstance(job.answer, PromptRefused)
    assert job.answer.reason.startswith("its records take ")
    assert not computing.engine.streams
    computing.stack.close()


def test_prompts_that_wait_to_be_fetched_take_half_of_host_memory_together() -> None:
    computing = Computing(blocks=40)
    first, second = (computing.prefills.ask(scope, PROMPT, 5.0) for scope in "ab")
    computing.finish(first)
    computing.finish(second)
    assert isinstance(first.answer, Offer)
    assert isinstance(second.answer, PromptRefused)
    assert "full of prompts that wait to be fetched" in second.answer.reason
    assert computing.pins() == 9
    computing.stack.close()


def test_a_prompt_that_is_given_up_while_it_is_computed_leaves_nothing() -> None:
    computing = Computing()
    job = computing.prefills.ask("", PROMPT, 5.0)
    computing.prefills.turn()
    computing.engine.step()
    computing.prefills.give_up(job)
    computing.prefills.turn()
    assert not computing.engine.streams
    computing.engine.drain()
    computing.prefills.turn()
    assert not len(computing.prefills)
    assert not computing.pins()
    assert not job.is_over.is_set()
    computing.stack.close()
