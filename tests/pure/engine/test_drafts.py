"""Speculation: what is guessed, what comes of it, and that nobody could tell from the tokens."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.build.plan import plan_checkpoint
from quire.check.promises import check_books, check_nothing_left
from quire.check.scripts import script_for
from quire.check.shadow import ShadowRunner
from quire.core.drafting import Drafter
from quire.core.events import TokensDrafted
from quire.core.memory import Follows, Memory, Part
from quire.core.request import Ending, Request
from quire.core.sampling import Grammar, GrammarSort, Sampling
from quire.core.step import Step
from quire.engine.engine import Engine
from quire.models.shape import Layer, ModelShape
from quire.options.run import RunOptions
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.recording.recorder import RecordingEngine
from quire.recording.replay import replay
from quire.text.ngrams import MOST_TOKENS, NGramDrafter
from quire.text.suffixes import SuffixDrafter
from quire.worker.steps.drafting import verify_drafts
from small_kinds import KINDS

LOOKAHEAD = 3


def tokens(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


# ── guesses ───────────────────────────────────────────────────────────────


def proposed(drafter: Drafter, count: int) -> list[int]:
    return drafter.propose(np.array([0]), np.array([count]), 1).get(0, tokens()).tolist()


def guess(said: np.ndarray, count: int = 3) -> list[int]:
    drafter = NGramDrafter()
    drafter.enter(0, said, "")
    return proposed(drafter, count)


def test_what_followed_the_same_tokens_before_is_guessed() -> None:
    assert guess(tokens(1, 2, 3, 4, 5, 6, 9, 1, 2)) == [3, 4, 5]
    assert guess(tokens(1, 2, 3, 4, 5, 6, 9, 1, 2), count=1) == [3]


def test_a_longer_match_counts_more_than_a_later_one() -> None:
    assert guess(tokens(7, 8, 1, 2, 50, 51, 52, 8, 1, 2, 60, 61, 62, 7, 8, 1, 2)) == [50, 51, 52]


def test_of_matches_of_one_length_the_latest_counts() -> None:
    assert guess(tokens(1, 2, 50, 51, 52, 1, 2, 60, 61, 62, 1, 2)) == [60, 61, 62]


def test_a_loop_is_taken_round_and_round() -> None:
    assert guess(tokens(9, 1, 2, 1, 2), count=5) == [1, 2, 1, 2, 1]
    assert guess(tokens(5, 5, 5), count=4) == [5, 5, 5, 5]


@pytest.mark.parametrize("said", [tokens(1), tokens(1, 2), tokens(1, 2, 3, 4), tokens(1, 2, 1)])
def test_where_nothing_repeats_nothing_is_guessed(said: np.ndarray) -> None:
    assert guess(said) == []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.lists(st.integers(1, 40), max_size=6))
def test_guesses_do_not_depend_on_how_tokens_came(said: list[int], cuts: list[int]) -> None:
    first, *others = np.split(tokens(*said), sorted({cut for cut in cuts if cut < len(said)}))
    drafter = NGramDrafter()
    drafter.enter(0, tokens(3, 2, 1, 0), "")
    drafter.enter(0, first, "")
    for piece in others:
        proposed(drafter, 2)
        for token in piece:
            drafter.extend(np.array([0]), tokens(token))
    assert proposed(drafter, 4) == guess(tokens(*said), 4)


def test_of_a_long_prompt_the_end_is_looked_at() -> None:
    seen, unseen = np.arange(10, MOST_TOKENS + 10, dtype=np.int32), tokens(1, 2, 3)
    assert guess(np.concatenate([unseen, seen[:-4], tokens(12, 13)]), 1) == [14]
    assert guess(np.concatenate([unseen, seen[:-2], tokens(1, 2)]), 1) == []


# ── which of them come true ───────────────────────────────────────────────


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(1, 3), st.lists(st.integers(0, 1), max_size=3), st.integers(0, 15)),
        min_size=1,
        max_size=5,
    )
)
def test_samples_count_up_to_the_first_wrong_guess(rows: list[tuple[bool, int, list[int], int]]) -> None:
    """Each row: whether it samples, its known tokens, its guesses, and bits that say what is sampled."""
    drafts = [guesses if samples else [] for samples, _, guesses, _ in rows]
    counts = np.array([row[1] + len(own) for row, own in zip(rows, drafts, strict=True)])
    ids = [token for row, own in zip(rows, drafts, strict=True) for token in [1] * row[1] + own]
    samples = np.array([row[0] for row in rows])
    zeros = np.zeros(len(rows), dtype=np.int64)
    lengths = np.array([len(own) for own in drafts])
    step = Step(4, zeros, zeros, counts, samples, zeros, tokens(*ids), drafts=lengths)
    pairs = zip(rows, drafts, strict=True)
    sampled = [[bits >> place & 1 for place in range(len(own) + 1)] for (_, _, _, bits), own in pairs]
    sampled = [own for own, row in zip(sampled, rows, strict=True) if row[0]]
    result = verify_drafts(step, np.array([token for own in sampled for token in own], dtype=np.int64))
    expected = []
    for own, guesses in zip(sampled, [own for own, row in zip(drafts, rows, strict=True) if row[0]], strict=True):
        right = next((place for place, token in enumerate(guesses) if own[place] != token), len(guesses))
        expected.append(own[: right + 1])
    assert result.number == 4
    assert result.counts is not None
    assert result.counts.tolist() == [len(own) for own in expected]
    assert result.tokens.tolist() == [token for own in expected for token in own]


# ── in a plan ─────────────────────────────────────────────────────────────


def test_draft_layers_get_no_memory_where_nobody_runs_them(tmp_path: Path) -> None:
    """A checkpoint that has them is planned as if it had none: only the lookahead is there."""
    config = {
        "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 2,
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4,
        "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12,
        "n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 32, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1, "vocab_size": 100, "max_position_embeddings": 512, "num_nextn_predict_layers": 1,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = Settings(max_length=64, max_requests=2, speculative_tokens=LOOKAHEAD)
    plan = plan_checkpoint(tmp_path, settings, Budget(pool_bytes=1 << 20), RunOptions(device="cpu"))
    assert sum(len(kind.layers) for kind in plan.stages[0].kinds) == 2
    assert plan.lookahead == LOOKAHEAD


# ── in an engine ──────────────────────────────────────────────────────────


class Prophet:
    """Knows what a request will yield, and says it, after some silence; every `errs`-th token wrongly."""

    def __init__(self, script: np.ndarray, errs: int = 0, silent: int = 0) -> None:
        self.script, self.errs, self.silent = script.astype(np.int32), errs, silent
        self.known = 0
        self.asked: list[int] = []

    def enter(self, row: int, said: np.ndarray, scope: str) -> None:
        del row, scope
        self.known = len(said)

    def extend(self, rows: np.ndarray, said: np.ndarray) -> None:
        del rows
        self.known += len(said)

    def propose(self, rows: np.ndarray, counts: np.ndarray, step_tokens: int) -> dict[int, np.ndarray]:
        del step_tokens
        return {place: self._guess(int(counts[place])) for place in range(len(rows))}

    def _guess(self, count: int) -> np.ndarray:
        self.asked.append(count)
        count = 0 if len(self.asked) <= self.silent else count
        places = np.arange(self.known, min(self.known + count, len(self.script)))
        return self.script[places] + (places % self.errs == 0 if self.errs else 0)


def plan_of(names: tuple[str, ...] = ("full", "window", "state"), batch_tokens: int = 64) -> Plan:
    shape = ModelShape("small", "test", tuple(KINDS[name] for name in names), max_length=96, weights_known=False)
    settings = Settings(max_length=96, max_requests=2, batch_tokens=batch_tokens, speculative_tokens=LOOKAHEAD)
    return make_plan(shape, settings, Budget(pool_bytes=1 << 20))


def engine_for(plan: Plan, drafter: Drafter, *requests: Request, overlap: int = 2) -> Engine:
    runner = ShadowRunner()
    engine = Engine(plan, runner, drafter=drafter, overlap=overlap)
    runner.attach(engine.scheduler)
    for request in requests:
        runner.scripts[request.name] = script_for(request)
        engine.submit(request)
    return engine


def talk(outputs: int = 24, **more: object) -> Request:
    return Request("talk", np.arange(40, 60, dtype=np.int32), outputs, **more)  # type: ignore[arg-type]


def finish(engine: Engine) -> np.ndarray:
    stream = engine.streams["talk"]
    while engine.step():
        check_books(engine.scheduler)
    check_nothing_left(engine.scheduler)
    return stream.tokens()


def drafted(engine: Engine) -> tuple[int, int]:
    sums = engine.counters.sums
    return sums[TokensDrafted, "drafted"], sums[TokensDrafted, "accepted"]


@pytest.mark.parametrize("overlap", [1, 2, 3])
@pytest.mark.parametrize("errs", [0, 2, 5])
def test_tokens_are_those_of_a_run_without_drafts(errs: int, overlap: int) -> None:
    script = script_for(talk()).tokens
    engine = engine_for(plan_of(), Prophet(script, errs), talk(), overlap=overlap)
    assert finish(engine).tolist() == script[20:].tolist()
    guessed, true = drafted(engine)
    assert guessed > true > 0 if errs else guessed == true


@pytest.mark.parametrize(("scope", "is_drafted"), [("ann", True), ("bob", False)])
def test_what_an_earlier_request_of_the_same_scope_put_out_is_drafted(scope: str, is_drafted: bool) -> None:
    """The same prompt twice; what follows it depends on the scope, in these scripts as in a chat."""
    plan = plan_of(("full",))
    engine = engine_for(plan, SuffixDrafter(plan.max_requests, 1 << 18), replace(talk(scope="ann"), name="before"))
    while engine.step():
        pass
    assert drafted(engine) == (0, 0)
    later = talk(scope=scope)
    engine.runner.scripts["talk"] = script = script_for(later)  # type: ignore[attr-defined]
    engine.submit(later)
    assert finish(engine).tolist() == script.tokens[20:].tolist()
    assert (drafted(engine)[1] > 10) == is_drafted


def test_guesses_that_come_true_save_steps() -> None:
    """24 outputs, four at a time, the first four with the prompt."""
    engine = engine_for(plan_of(), Prophet(script_for(talk()).tokens), talk(), overlap=1)
    finish(engine)
    assert engine.scheduler.steps == 6
    assert drafted(engine) == (18, 18)


def test_a_row_with_a_token_in_flight_guesses_behind_it() -> None:
    """What was guessed for the token itself is skipped, and the row waits for the rest."""
    prophet = Prophet(script_for(talk()).tokens, silent=1)
    engine = engine_for(plan_of(), prophet, talk())
    engine.step()
    rows = engine.scheduler.rows
    assert rows.expected[0] == rows.known[0] + 1
    engine.step()
    assert prophet.asked == [LOOKAHEAD, 1 + LOOKAHEAD]
    assert engine.scheduler.rows.drafts[0] == LOOKAHEAD
    assert engine.scheduler.schedule() is None
    assert finish(engine).tolist() == script_for(talk()).tokens[20:].tolist()


def test_drafts_take_what_the_step_has_left() -> None:
    """A budget of two tokens leaves room for one draft beside a row's own token, and one of one for none."""
    for batch_tokens, guessed in ((2, 1), (1, 0)):
        engine = engine_for(plan_of(batch_tokens=batch_tokens), Prophet(script_for(talk()).tokens), talk(), overlap=1)
        while engine.scheduler.rows.known[0] < 30:
            engine.step()
        step = engine.scheduler.schedule()
        assert step is not None
        assert (0 if step.drafts is None else step.drafts[0]) == guessed
        assert step.tokens == batch_tokens


def test_nothing_counts_behind_a_stop_token() -> None:
    script = script_for(talk()).tokens
    request = talk(stop_tokens=(int(script[25]),))
    engine = engine_for(plan_of(), Prophet(script), request)
    stream = engine.streams["talk"]
    assert finish(engine).tolist() == script[20:26].tolist()
    assert stream.ending is Ending.STOP


@pytest.mark.parametrize("first", range(21, 27))
def test_of_several_stop_tokens_in_one_step_the_first_counts(first: int) -> None:
    script = script_for(talk()).tokens
    engine = engine_for(plan_of(), Prophet(script), talk(stop_tokens=tuple(script[first : first + 3].tolist())))
    assert finish(engine).tolist() == script[20 : first + 1].tolist()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(presence_penalty=0.5),
        Sampling(repetition_penalty=1.2),
        Sampling(grammar=Grammar(GrammarSort.REGEX, "a*")),
        Sampling(logprobs=1),
    ],
)
def test_who_samples_by_what_was_put_out_before_gets_no_drafts(sampling: Sampling) -> None:
    engine = engine_for(plan_of(), Prophet(script_for(talk()).tokens), talk(sampling=sampling))
    finish(engine)
    assert drafted(engine) == (0, 0)


def test_a_state_that_cannot_be_undone_lets_nobody_guess() -> None:
    part = Part("key", 4, 64, follows=Follows.KV, replicated=True)
    shape = ModelShape("forward", "test", (Layer((Memory("state", (part,), rewinds=False),)),), max_length=96)
    settings = Settings(max_length=96, max_requests=2, speculative_tokens=LOOKAHEAD)
    plan = make_plan(shape, settings, Budget(pool_bytes=1 << 20))
    engine = engine_for(plan, Prophet(script_for(talk()).tokens), talk())
    assert "a wrong guess could not be undone" in engine.scheduler.drafts.disabled
    finish(engine)
    assert drafted(engine) == (0, 0)


def test_a_recording_with_drafts_plays_back(tmp_path: Path) -> None:
    """Without the drafter."""
    script = script_for(talk()).tokens
    file, runner = io.StringIO(), ShadowRunner()
    engine = RecordingEngine(file, plan_of(), runner, drafter=Prophet(script, 5), clock=lambda: 0.0)
    runner.attach(engine.scheduler)
    for request in (talk(), Request("other", talk().prompt + 1, 9, sampling=Sampling(logprobs=0))):
        runner.scripts[request.name] = script_for(request)
        engine.submit(request)
    finish(engine)
    path = tmp_path / "run.jsonl"
    path.write_text(file.getvalue())
    again = replay(path)
    assert drafted(again) == drafted(engine)
    assert again.scheduler.steps == engine.scheduler.steps
    assert again.scheduler.is_idle()
