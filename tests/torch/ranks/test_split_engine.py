"""The engine on several ranks and stages yields the tokens that it yields on one, whatever happens to requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.core.request import Request
from quire.core.sampling import Sampling
from quire.engine.engine import Engine, Stream
from quire.plan.settings import Settings
from split_engine import plan_folder, split_engine
from split_models import QUICK, SLOW, config_of_type
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


def answers(engine: Engine) -> list[Any]:
    """Of the requests together, and of the same once more, which find their prefixes in the cache."""
    found: list[Any] = []
    for label in ("", "again "):
        streams: list[Stream] = [
            engine.submit(Request(f"{label}{place}", prompt, OUTPUTS, sampling=WAYS[place % len(WAYS)]))
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


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.soak) for name in SLOW)])
def test_two_ranks_two_stages_and_both_yield_the_tokens_of_one(name: str, folder_of: Callable[[str], Path]) -> None:
    """Greedy, sampled from seeds, with penalties; half the prompts are found in the cache. Red if a share of the
    weights were wrong, or a stage moved pages of another."""
    folder = folder_of(name)
    with split_engine(folder, plan_folder(folder, settings(), 2 << 20)) as engine:
        expected = answers(engine)
    for ranks, stages in ((2, 1), (1, 2), (2, 2)):
        with split_engine(folder, plan_folder(folder, settings(ranks, stages), 2 << 20)) as engine:
            assert answers(engine) == expected, f"{ranks} ranks, {stages} stages"
