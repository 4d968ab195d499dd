"""What an `LLM` is asked: what cannot be is refused within the call, and whatever goes wrong, it can be asked again."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, Sampling
from quire.cache.audit import audit
from quire.core.errors import InputError
from quire.core.rules import Rules
from quire.engine import history
from quire.options.run import RunOptions
from quire.plan.settings import Budget, Settings
from tiny_folder import make_folder

PROMPT = [5, 6, 7, 8]
WHOLE = Sampling(ignore_eos=True)
SETTINGS, POOL = Settings(max_requests=8, batch_tokens=64, max_length=256), Budget(pool_bytes=2 << 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, settings=SETTINGS, budget=POOL)


def answer(llm: LLM) -> tuple[int, ...]:
    (completion,) = llm.generate([PROMPT], WHOLE, max_tokens=12)
    assert not llm.engine.streams
    for memory in llm.engine.scheduler.memories:
        audit(memory, {})
    return completion.token_ids


@pytest.mark.parametrize("number", [-1, -2, 10**6, 10**12, 10**30])
def test_a_token_that_the_model_has_not_got_is_refused(llm: LLM, number: int) -> None:
    """Some numbers mean something between scheduler and worker."""
    with pytest.raises(InputError, match=f"the prompt has token {number}: the model's tokens are 0 to"):
        llm.generate([[3, number, 4]])
    assert len(answer(llm)) == 12


def test_tokens_are_whole_numbers(llm: LLM) -> None:
    with pytest.raises(InputError, match="token numbers are whole"):
        llm.generate([[3.5, 4.0]])  # type: ignore[list-item]


@pytest.mark.parametrize("prompt", [[[1, 2], [3, 4]], [1, None], [[1], [2, 3]], [True, False]])
def test_a_prompt_that_is_no_list_of_numbers_is_refused(llm: LLM, prompt: list[Any]) -> None:
    with pytest.raises(InputError, match="token numbers"):
        llm.generate([prompt])
    assert len(answer(llm)) == 12


def test_a_bias_for_a_token_that_the_model_has_not_got_is_refused(llm: LLM) -> None:
    steps = llm.engine.scheduler.steps
    with pytest.raises(InputError, match="logit_bias names token 1000000: the model's tokens are 0 to"):
        llm.generate([PROMPT], Sampling(logit_bias=((10**6, 1.0),)))
    assert llm.engine.scheduler.steps == steps
    assert len(answer(llm)) == 12


def once(what: Callable[..., Any], fault: Callable[[], object], after: int = 2) -> Callable[..., Any]:
    """Something goes wrong at the end of the call behind so many, and never again."""
    calls = iter(range(after + 2))

    def faulty(*given: Any, **named: Any) -> Any:
        result = what(*given, **named)
        if next(calls, None) == after:
            fault()
        return result

    return faulty


def fail() -> None:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("place", ["launch", "collect", "sample"])
def test_after_a_step_that_failed_it_can_be_asked_again(llm: LLM, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever else was running is told; nobody gets tokens of a step that failed."""
    expected = answer(llm)
    other = llm.stream(PROMPT, WHOLE, max_tokens=60)
    next(other)
    runner = llm.engine.runner
    monkeypatch.setattr(runner, place, once(getattr(runner, place), fail))
    with pytest.raises(RuntimeError, match="out of memory"):
        llm.generate([PROMPT], WHOLE, max_tokens=12)
    with pytest.raises(InputError, match=r"failed \(RuntimeError\('out of memory'\)\): ask again"):
        list(other)
    assert answer(llm) == expected


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Whoever runs the tests in the background may have told them not to hear Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("part", ["schedule", "apply"])
def test_an_interrupted_call_leaves_the_books_in_order(llm: LLM, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is heard, behind the step that it came in; a stream of someone else goes on."""
    expected, scheduler = answer(llm), llm.engine.scheduler
    other = llm.stream(PROMPT, WHOLE, max_tokens=12)
    text = next(other)
    interrupted = once(getattr(scheduler, part), lambda: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(scheduler, part, interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([PROMPT], WHOLE, max_tokens=60)
    assert text + "".join(other) == llm.tokenizer.decode(expected)
    assert answer(llm) == expected
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_more_prompts_than_may_wait_are_answered_one_after_another(
    llm: LLM, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each is told what it found in the cache, though there are more than anyone remembers."""
    monkeypatch.setattr(history, "REQUESTS_REMEMBERED", 20)
    small = LLM(folder, settings=SETTINGS, budget=POOL, rules=Rules(queue_bound=20))
    beginning = list(range(5, 137))
    prompts = [beginning, *([*beginning, 5 + place] for place in range(40))]
    expected = [llm.generate([prompt], WHOLE, max_tokens=3)[0].token_ids for prompt in prompts]
    answers = small.generate(prompts, WHOLE, max_tokens=3)
    assert [answer.token_ids for answer in answers] == expected
    assert [answer.reused_tokens for answer in answers] == [0, *[128] * 40]


@pytest.mark.parametrize("count", [0, -3])
def test_no_tokens_are_refused(llm: LLM, count: int) -> None:
    with pytest.raises(InputError, match=f"max_tokens is {count}: ask for at least 1"):
        llm.generate([PROMPT], max_tokens=count)
    with pytest.raises(InputError, match=f"max_tokens is {count}: ask for at least 1"):
        next(llm.stream(PROMPT, max_tokens=count))


@pytest.mark.story
def test_an_answer_that_cannot_be_as_long_as_asked_is_told_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By `generate` and by `stream`, whoever comes first; a prompt that leaves nothing is refused instead."""
    for ask in (
        lambda one: one.generate([PROMPT], max_tokens=61),
        lambda one: next(one.stream(PROMPT, max_tokens=61)),
    ):
        llm = LLM(folder, settings=replace(SETTINGS, max_length=64), budget=POOL)
        llm.generate([PROMPT], max_tokens=60)
        with pytest.raises(InputError):
            llm.generate([PROMPT * 64], max_tokens=1)
        assert not caplog.messages
        ask(llm)
        (told,) = caplog.messages
        assert told.startswith("max_tokens is 61, and after a prompt of 4 tokens 60 fit")
        assert "longest request has 64" in told
        llm.generate([PROMPT, PROMPT * 2], max_tokens=300)
        assert len(caplog.messages) == 1
        caplog.clear()


@pytest.mark.parametrize("prompts", [[{"role": "user", "content": "a"}], [1, 2, 3], [None]])
def test_a_single_prompt_that_is_no_text_goes_into_a_list(llm: LLM, prompts: list[Any]) -> None:
    with pytest.raises(InputError, match=r"a prompt is text, .*\[\[…\]\]"):
        llm.generate(prompts)
    for ask in (llm.count, lambda one: next(llm.stream(one))):
        with pytest.raises(InputError, match="a prompt is text, "):
            ask(prompts[0])
    if prompts != [None]:
        assert llm.generate([prompts], max_tokens=1)[0].token_ids


def test_arrays_are_prompts_too(llm: LLM) -> None:
    assert llm.generate(np.array([PROMPT, PROMPT]), max_tokens=2) == llm.generate([PROMPT] * 2, max_tokens=2)


def test_options_that_would_do_nothing_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="--draft-tokens 3 needs a draft model"):
        LLM(folder, settings=SETTINGS, budget=POOL, draft_tokens=3)
    with pytest.raises(InputError, match="--compile needs --device cuda"):
        LLM(folder, settings=SETTINGS, budget=POOL, device="cpu", compile=True)


def test_an_option_that_there_is_none_of_is_refused_with_the_nearest(folder: Path) -> None:
    with pytest.raises(InputError, match=r"LLM has no option compiled: did you mean compile\?"):
        LLM(folder, compiled=True)
    with pytest.raises(InputError, match=r"LLM has no option xyz$"):
        LLM(folder, xyz=1)


def test_options_are_keywords_or_one_value(folder: Path) -> None:
    """Not both: one of them would be ignored."""
    options = RunOptions(device="cpu", rules=Rules(queue_bound=20), overlap=1)
    with LLM(folder, settings=SETTINGS, budget=POOL, options=options) as whole:
        assert whole.engine.overlap == 1
        expected = whole.generate([PROMPT], max_tokens=3)
    with LLM(folder, settings=SETTINGS, budget=POOL, device="cpu", dtype="fp32", overlap=2) as llm:
        assert llm.generate([PROMPT], max_tokens=3) == expected
    with pytest.raises(InputError, match="options and device are both given: put device into options"):
        LLM(folder, options=options, device="cpu")


def test_help_shows_every_option() -> None:
    shown = inspect.signature(LLM).parameters
    assert set(shown) == {"model", "settings", "budget", "options", "progress", *RunOptions.__dataclass_fields__}
    assert shown["device"].default == "auto"
    assert "draft_model: 'str | Path | None' = None" in pydoc.render_doc(LLM, renderer=pydoc.plaintext)


async def _all_of(pieces: AsyncIterator[str]) -> list[str]:
    return [piece async for piece in pieces]


@pytest.mark.story
@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("generate", lambda one: one.generate([PROMPT])),
        ("stream", lambda one: list(one.stream(PROMPT))),
        ("astream", lambda one: asyncio.run(_all_of(one.astream(PROMPT)))),
        ("count", lambda one: one.count(PROMPT)),
    ],
)
def test_a_closed_llm_refuses_whatever_it_is_asked_and_can_be_closed_again(
    folder: Path, name: str, ask: Callable[[LLM], object]
) -> None:
    with LLM(folder, settings=SETTINGS, budget=POOL) as llm:
        assert len(answer(llm)) == 12
    steps = llm.engine.scheduler.steps
    for _ in range(2):
        with pytest.raises(InputError, match=f"{name} was called, and this LLM is closed: make a new LLM"):
            ask(llm)
        llm.close()
    assert llm.engine.scheduler.steps == steps


@pytest.mark.story
def test_an_answer_that_is_cut_off_by_a_close_does_not_look_complete(folder: Path) -> None:
    llm = LLM(folder, settings=SETTINGS, budget=POOL)
    pieces = llm.stream(PROMPT, WHOLE, max_tokens=60)
    next(pieces)
    llm.close()
    with pytest.raises(InputError, match="an answer was under way, and this LLM is closed: make a new LLM"):
        list(pieces)


def test_whoever_fails_within_a_with_closes_too(folder: Path) -> None:
    with pytest.raises(RuntimeError), LLM(folder, settings=SETTINGS, budget=POOL) as llm:
        fail()
    with pytest.raises(InputError, match="is closed"):
        llm.generate([PROMPT])
