"""The engine is asked for a view only while somebody looks, once at a time, and not again while it is silent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from quire.inspect.look import look
from quire.inspect.views import EngineView
from quire.serve import views
from quire.serve.away import EngineGone
from quire.serve.ending import ended_how
from quire.serve.views import EngineViews, step_seconds
from small_engines import engine_for, request, small_plan


def view_after(steps: int, at: float) -> EngineView:
    engine, _ = engine_for(small_plan(["full"], 40))
    engine.submit(request("a", 40, 30))
    for _ in range(steps):
        engine.step()
    return replace(look(engine, at), cost_seconds=0.0)


class Asked:
    """An engine that answers when a test says so."""

    is_ready = True

    def __init__(self) -> None:
        self.questions: list[asyncio.Future[Any]] = []

    async def view(self, question: object, seconds: float) -> Any:
        del question, seconds
        self.questions.append(asyncio.get_running_loop().create_future())
        return await self.questions[-1]


@pytest.fixture(autouse=True)
def _short_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "FRAME_SECONDS", 0.01)


def test_without_a_reader_nothing_is_asked() -> None:
    async def run() -> None:
        asked = Asked()
        EngineViews(asked)  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        assert not asked.questions

    asyncio.run(run())


def test_many_readers_share_one_question() -> None:
    async def run() -> None:
        asked, shown = Asked(), view_after(3, 1.0)
        source = EngineViews(asked)  # type: ignore[arg-type]
        reading = [asyncio.ensure_future(source.latest(0.01)) for _ in range(20)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        (question,) = asked.questions
        question.set_result(shown)
        assert {id((await one).view) for one in reading} == {id(shown)}

    asyncio.run(run())


def test_a_silent_engine_has_one_open_question_and_the_last_view_stays() -> None:
    """However long it is silent: it would find all of them in its pipe."""

    async def run() -> None:
        asked, shown = Asked(), view_after(3, 1.0)
        source = EngineViews(asked)  # type: ignore[arg-type]
        await source.latest(0.01)
        asked.questions[0].set_result(shown)
        await asyncio.sleep(0.02)
        for _ in range(10):
            seen = await source.latest(0.01)
        assert len(asked.questions) == 2
        assert seen.view is shown
        assert seen.unanswered_seconds > 0

    asyncio.run(run())


def test_an_engine_that_dies_is_asked_again_when_it_is_ready() -> None:
    async def run() -> None:
        asked = Asked()
        source = EngineViews(asked)  # type: ignore[arg-type]
        await source.latest(0.01)
        asked.questions[0].set_exception(EngineGone("died"))
        asked.is_ready = False
        await asyncio.sleep(0.02)
        for _ in range(3):
            assert (await source.latest(0.01)).unanswered_seconds == 0
        assert len(asked.questions) == 1
        asked.is_ready = True
        await source.latest(0.01)
        assert len(asked.questions) == 2

    asyncio.run(run())


def test_views_that_cost_much_are_asked_for_less_often() -> None:
    """An hour of the engine's time is followed by 250 hours without a question."""

    async def run() -> None:
        asked = Asked()
        source = EngineViews(asked)  # type: ignore[arg-type]
        await source.latest(0.01)
        asked.questions[0].set_result(replace(view_after(3, 1.0), cost_seconds=3600.0))
        for _ in range(5):
            await asyncio.sleep(0.02)
            await source.latest(0.01)
        assert len(asked.questions) == 1

    asyncio.run(run())


def test_the_time_of_a_step_is_counted_between_two_busy_moments() -> None:
    early, late = view_after(3, 10.0), view_after(7, 12.0)
    assert step_seconds(early, late) == pytest.approx(2.0 / (late.step - early.step))
    assert step_seconds(early, early) is None
    idle = SimpleNamespace(step=9, at=99.0, requests=SimpleNamespace(running=0))
    assert step_seconds(early, idle) is None  # type: ignore[arg-type]


def test_last_words_are_a_sentence() -> None:
    assert ended_how(-9, 3) == "the engine's process was ended by SIGKILL; 3 requests ended with it"
    assert ended_how(1, 0) == "the engine's process ended with exit code 1"
