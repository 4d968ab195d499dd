"""The engine on stages of any sizes, with steps in flight on each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.core.request import Request
from quire.core.sampling import Sampling
from quire.engine.engine import Engine, Stream
from quire.plan.settings import Settings
from split_engine import StagesInTurn, plan_folder, split_engine
from split_models import config_of_type
from tiny_folder import save_folder

OUTPUTS = 12
WAYS = [
    Sampling(),
    Sampling(temperature=1.0, seed=7),
    Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=8),
    Sampling(logprobs=2, prompt_logprobs=1),
]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = save_folder(tmp_path_factory.mktemp("split"), config_of_type(name))
        return made[name]

    return folder


def prompts() -> list[np.ndarray]:
    """3 to 61 tokens each; some begin alike."""
    random = np.random.default_rng(0)
    shared = random.integers(5, 200, 40)
    own = [random.integers(5, 200, count) for count in (5, 17, 40, 61, 3, 21, 9, 12)]
    each = [np.concatenate([shared, one]) if place % 3 == 2 else one for place, one in enumerate(own)]
    return [prompt.astype(np.int32) for prompt in each]


def answers(engine: Engine, ways: Sequence[Sampling] = WAYS) -> list[Any]:
    """Of the requests together, and of the same once more, which find their prefixes in the cache."""
    found: list[Any] = []
    for label in ("", "again "):
        streams: list[Stream] = [
            engine.submit(Request(f"{label}{place}", prompt, OUTPUTS, sampling=ways[place % len(ways)]))
            for place, prompt in enumerate(prompts())
        ]
        engine.drain()
        found += [stream.tokens().tolist() for stream in streams]
    return found


def settings(ranks: int = 1, stages: int = 1, layers: tuple[int, ...] | None = None) -> Settings:
    return Settings(
        max_length=128, max_requests=4, batch_tokens=48, match_unit_tokens=16, tensor_parallel=ranks,
        pipeline_parallel=stages, stage_layers=layers,
    )  # fmt: skip


@pytest.mark.parametrize("layers", [(1, 3), (0, 4), (4, 0), (1, 0, 3)])
def test_stages_of_any_sizes_yield_the_tokens_of_one(layers: tuple[int, ...], folder_of: Callable[[str], Path]) -> None:
    """The embedding's stage, the head's, or one between them may have no layer, and keeps nothing. Red if hidden states
    were sent where no layer is, or such a stage looked for tables of its own."""
    folder = folder_of("llama")
    with split_engine(folder, plan_folder(folder, settings(), 2 << 20)) as engine:
        expected = answers(engine)
    with split_engine(folder, plan_folder(folder, settings(1, len(layers), layers), 2 << 20)) as engine:
        assert answers(engine) == expected


@pytest.mark.parametrize("stages", [2, 3])
def test_the_first_stage_begins_steps_while_the_others_compute_earlier_ones(
    stages: int, folder_of: Callable[[str], Path]
) -> None:
    """As many steps as stages, before any other stage begins the first of them. Red if a launch waited for logits: it
    would give up after a minute. (For those of prompts it does.)"""
    folder = folder_of("llama")
    ways = [one for one in WAYS if one.prompt_logprobs is None]
    with split_engine(folder, plan_folder(folder, settings(), 2 << 20)) as engine:
        expected = answers(engine, ways)
    plan = plan_folder(folder, settings(1, stages), 2 << 20)
    with split_engine(folder, plan, join=StagesInTurn) as engine:
        assert answers(engine, ways) == expected
        assert engine.runner.most_waiting == stages  # type: ignore[attr-defined]


def test_a_row_that_changes_hands_in_flight_keeps_the_sampling_of_each(folder_of: Callable[[str], Path]) -> None:
    """Requests are cancelled while a step has them, and the same ones take their rows. Red if the token that the step
    draws counted as an output of the next request, which penalties then avoid."""
    folder, found, penalty = folder_of("llama"), [], Sampling(repetition_penalty=3.0)
    for stages in (1, 2):
        with split_engine(folder, plan_folder(folder, settings(1, stages), 2 << 20)) as engine:
            for place, prompt in enumerate(prompts()[:4]):
                engine.submit(Request(f"early {place}", prompt, 40, sampling=penalty))
            for _ in range(8):
                engine.step()
            assert engine.scheduler.flying
            for place in range(4):
                engine.cancel(f"early {place}")
            found.append(answers(engine, [penalty]))
    assert found[0] == found[1]
