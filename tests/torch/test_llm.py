"""Text in, text out, on the default model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire import LLM, Sampling
from quire.build.plan import plan_checkpoint
from quire.cli.main import main
from quire.core.errors import DoesNotFit, InputError, NeverFits
from quire.core.events import TokensDrafted
from quire.core.sampling import Grammar, GrammarSort
from quire.fetch.default import fetch_default
from quire.options.run import RunOptions
from quire.plan.settings import Budget, Settings

pytestmark = pytest.mark.network
QUESTION = "What is the capital of France?"
STORY = (
    "The keeper climbed the narrow stairs every evening at six. He carried a small lantern, a bottle of oil and a "
    "book. The lighthouse stood on a rock in the sea, and the sea was rarely calm. When a storm came, the keeper lit "
    "the great lamp and waited. Ships passed in the dark, and their captains saw the light and turned away from it."
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch_default()


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    settings = Settings(max_requests=8, batch_tokens=512, max_length=512)
    return LLM(folder, settings=settings, budget=Budget(pool_bytes=64 << 20))


def test_it_knows_the_capital_of_france(llm: LLM) -> None:
    (answer,) = llm.generate(QUESTION, max_tokens=12)
    assert "Paris" in answer.text
    assert answer.ending == "stop"


def test_the_second_time_the_prompt_is_reused_and_the_answer_is_the_same(llm: LLM) -> None:
    prompt = "Tell me about the moon. " * 24
    first, second = (llm.generate(prompt, max_tokens=4)[0] for _ in range(2))
    assert second.text == first.text
    assert second.reused_tokens >= 64 > first.reused_tokens


def test_a_stream_is_the_answer_in_pieces_and_ends_at_a_stop_string(llm: LLM) -> None:
    whole = "".join(llm.stream(QUESTION, max_tokens=12))
    assert whole == llm.generate(QUESTION, max_tokens=12)[0].text
    (cut,) = llm.generate(QUESTION, Sampling(stop=("Par",)), max_tokens=12)
    assert cut.text == whole[: whole.index("Par")]
    assert cut.ending == "stop"
    for _ in llm.stream(QUESTION, max_tokens=12):
        break
    assert not llm.engine.streams


@pytest.mark.parametrize("draft", ["ngram", "suffix"])
def test_guesses_change_nothing_about_a_summary(llm: LLM, folder: Path, draft: str) -> None:
    """Greedy or drawn: the tokens are the same, and some of them came together."""
    prompt = f"Summarize this text, word by word where you can:\n\n{STORY}"
    settings = Settings(max_requests=8, batch_tokens=512, max_length=512, speculative_tokens=4)
    guessing = LLM(folder, settings=settings, budget=Budget(pool_bytes=64 << 20), draft=draft)
    counters, accepted = guessing.engine.counters, 0
    for sampling in (Sampling(), Sampling(temperature=0.7, top_p=0.9, seed=7), Sampling(repetition_penalty=1.1)):
        alone, with_guesses = (one.generate(prompt, sampling, max_tokens=14)[0] for one in (llm, guessing))
        assert with_guesses.token_ids == alone.token_ids
        came_true = counters.sums[TokensDrafted, "accepted"] - accepted
        assert came_true == 0 if sampling.has_penalties else came_true > 0
        accepted += came_true


def test_a_schema_is_kept(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
    grammar = Grammar(GrammarSort.JSON, json.dumps(schema))
    for answer in llm.generate(["Name a city.", "Name another city."], Sampling(grammar=grammar), max_tokens=40):
        assert set(json.loads(answer.text)) == {"city"}
    with pytest.raises(InputError):
        llm.generate(QUESTION, Sampling(grammar=Grammar(GrammarSort.JSON, "{nonsense")))


def test_what_cannot_run_is_told_at_once(llm: LLM, folder: Path) -> None:
    """A prompt that is too long within the call; a plan that does not fit before any weight is read."""
    with pytest.raises(NeverFits, match="the longest that fits is 512"):
        llm.generate([list(range(100, 700))])
    with pytest.raises(DoesNotFit, match=r"max_length|sheets|fits"):
        plan_checkpoint(folder, Settings(max_length=8192), Budget(pool_bytes=64 << 20), RunOptions(device="cpu"))
    with pytest.raises(InputError, match="there is no such folder"):
        LLM("nowhere")


def test_a_pool_beyond_the_machines_memory_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.build.plan.available_bytes", lambda: 1 << 30)
    with pytest.raises(DoesNotFit, match=r"a pool of 2.00 GiB and weights of .* exceed the 1.00 GiB"):
        plan_checkpoint(folder, Settings(max_length=512), Budget(pool_bytes=2 << 30), RunOptions(device="cpu"))


def test_the_example_of_the_quick_start_runs(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert folder.is_dir()
    page = (Path(__file__).parents[2] / "docs" / "quick-start.md").read_text()
    exec(page.split("begin: example")[1].split("```python\n")[1].split("```")[0], {})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) >= 10
    assert any(line.startswith('weather {"city": ') for line in shown)
    city, ending = shown[-2].rsplit(" ", 1)
    assert json.loads(shown[-1]) == {"city": city}
    assert ending == "stop"


def test_generate_prints_the_text_and_nothing_else(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    arguments = [str(folder), "--max-tokens", "12", "--max-length", "512", "--pool", "64MiB", "--stats"]
    assert main(["generate", "--prompt", QUESTION, *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.out == "The capital of France is Paris.\n"
    assert "tokens in" in captured.err
    assert "plan: smollm2-135m-instruct, full 30 layers" in captured.err
