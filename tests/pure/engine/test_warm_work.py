"""Warm work: how long its chunks are, what a recording has of it, and which point a template's switches lead to."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cached_traffic import Traffic, with_leases, words
from quire.core.events import Event, PrefixEvicted, RequestAccepted, StepLaunched
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.recording.recorder import RecordingEngine, open_recording
from quire.recording.replay import replay
from quire.text.next_turn import NextTurns, Spoken
from quire.warm.pace import FixedPace, Pace
from quire.warm.work import Warm, WarmWork, announced
from small_engines import engine_for, request, run, small_plan
from small_kinds import KINDS
from talks import Talk, prompts_of
from thinking_templates import TOOL


def _plan() -> Plan:
    """With just the sheets that a lone request of 640 tokens needs."""
    layers = (KINDS["full"], KINDS["state"]) * 2
    shape = ModelShape("small", "test", layers, max_length=640, weights_known=False)
    settings = Settings(batch_tokens=256, max_requests=2, max_length=640)
    (stage,) = make_plan(shape, settings, Budget(pool_bytes=1 << 30)).stages
    return make_plan(shape, settings, Budget(sheets=(bound.minimum(stage.kinds, 640, 0),)))


def test_chunks_grow_until_they_take_half_of_the_limit_and_shrink_at_once() -> None:
    pace, seconds = Pace(0.1, unit=16, most=512), 0.001
    sizes = []
    for _ in range(8):
        sizes.append(pace.tokens)
        pace.note(pace.tokens, pace.tokens * seconds)
    assert sizes[:3] == [16, 32, 48]
    assert sizes[-1] * seconds <= 0.05
    pace.note(48, 1.0)
    assert pace.tokens == 16
    pace.note(16, 10.0)
    assert pace.tokens == 16, "the smallest chunk is a unit"
    for _ in range(20):
        pace.note(pace.tokens, 0.0)
    assert pace.tokens == 512


@pytest.mark.parametrize(("chunk", "most"), [(1, 1), (24, 24), (1_000, 64), (None, 64)])
def test_a_step_computes_no_more_of_a_request_than_it_says(chunk: int | None, most: int) -> None:
    """A step has 64 tokens at most."""
    launched: list[int] = []
    engine, _ = engine_for(small_plan(["full", "window"], 40, budget=64), listeners=[partial(_note_tokens, launched)])
    stream = engine.submit(request("chunked", 100, 5, chunk_tokens=chunk))
    run(engine, 400)
    assert max(launched) == most
    assert len(stream.tokens()) == 5


def _note_tokens(launched: list[int], event: Event) -> None:
    if isinstance(event, StepLaunched):
        launched.append(event.tokens)


@pytest.mark.parametrize("names", [("full", "window"), ("full", "state")])
def test_a_request_with_an_announced_prompt_computes_its_last_token_alone(names: tuple[str, ...]) -> None:
    """Windows and states are kept where it goes on: before that token, not after it."""
    traffic, prompt = Traffic(with_leases(*names)), words("announced", 45)
    work = WarmWork(traffic.engine, FixedPace(16))
    work.add(announced(prompt))
    while work.step():
        pass
    assert traffic.ask("asked", prompt)["hit_tokens"] == len(prompt) - 1


def test_a_longer_prompt_takes_the_place_of_none_in_another_scope() -> None:
    work = WarmWork(Traffic(with_leases("full")).engine, FixedPace(16))
    for count, scope in ((16, "one"), (32, "two"), (48, "one")):
        work.add(Warm(words("talk", count), scope))
    assert len(work) == 2


@pytest.mark.story
def test_a_chunk_that_finds_less_than_before_is_computed_in_several_steps() -> None:
    """Nobody waits for more than a chunk, whatever is evicted between the look at the cache and the chunk's start."""
    talk = Talk("qwen", _plan(), True)
    index, launched = talk.engine.scheduler.reuse.index, list[int]()

    def forget(event: Event) -> None:
        if isinstance(event, RequestAccepted) and event.prompt > 200:
            index.drop()

    talk.engine.scheduler.events.subscribe(forget)
    talk.engine.scheduler.events.subscribe(partial(_note_tokens, launched))
    talk.work.add(Warm(np.arange(300, dtype=np.int32)))
    talk.idle()
    assert max(launched) == index.unit > talk.work.pace.tokens
    assert sum(launched) > 300


def test_a_replay_evicts_and_keeps_what_the_recorded_engine_did(tmp_path: Path) -> None:
    """In a pool that is too small for all that is computed."""
    path = tmp_path / "recording"
    with open_recording(path) as file:
        talk = Talk("qwen", _plan(), True, make=partial(RecordingEngine, file))
        for turn in range(6):
            talk.speak({"role": "user", "content": f"question {turn}"}, f"thinking of {turn}, " * 6, f"it is {turn}")
            talk.work.add(Warm(np.arange(300, dtype=np.int32) % 40 + turn, "another"))
            talk.idle()
    index, again = talk.engine.scheduler.reuse.index, replay(path).scheduler.reuse.index
    assert talk.engine.counters.events[PrefixEvicted, ""] > 0
    assert sorted(key for key, _ in index.nodes.items()) == sorted(key for key, _ in again.nodes.items())
    assert sorted(index.nodes.rank[index.nodes.is_there]) == sorted(again.nodes.rank[again.nodes.is_there])


@pytest.mark.parametrize(
    ("style", "switches", "offset"),
    [
        ("qwen", None, 0),
        ("qwen", {"enable_thinking": False}, -6),  # <think>, two line ends, </think>, two line ends
        ("harmony", None, 1),  # <|channel|>
        ("plain", None, None),
    ],
)
def test_the_point_follows_from_the_template_and_its_switches(
    style: str, switches: dict[str, bool] | None, offset: int | None
) -> None:
    prompts = prompts_of(style)
    turns = NextTurns(prompts)
    for tools in ((), (TOOL,)):
        messages = ({"role": "user", "content": "hello"},)
        text = prompts.render(messages, tools, switches)
        prompt = prompts.encode(text, False)
        found = turns.points(Spoken(messages, tools, switches, text, prompt))
        assert found == (() if offset is None else (len(prompt) + offset,))
    tool = Spoken(({"role": "tool", "content": "x"},), (), switches, text, prompt)
    assert turns.points(tool) == ()


def test_text_after_a_mark_is_encoded_as_in_the_whole() -> None:
    prompts = prompts_of("qwen")
    turns = NextTurns(prompts)
    messages = tuple({"role": role, "content": f"{role} says something"} for role in ("user", "assistant", "user"))
    text = prompts.render(messages)
    spoken = Spoken(messages, (), None, text, prompts.encode(text, False))
    for later in (text + "more <|im_end|>", text[:-9] + "<think>", text[: len(text) // 2], "other " + text, ""):
        assert np.array_equal(turns._encode_after(later, spoken), prompts.encode(later, False))
