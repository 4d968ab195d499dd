"""The engine on stages of any sizes."""

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


@pytest.mark.parametrize("layers", [(1, 3), (0, 4), (4, 0), (1, 0, 3)])
def test_stages_of_any_sizes_yield_the_tokens_of_one(layers: tuple[int, ...], folder_of: Callable[[str], Path]) -> None:
    """The embedding's stage, the head's, or one between them may have no layer, and keeps nothing. Red if hidden states
    were sent where no layer is, or such a stage looked for tables of its own."""
    folder = folder_of("llama")
    with split_engine(folder, plan_folder(folder, settings(), 2 << 20)) as engine:
        expected = answers(engine)
    with split_engine(folder, plan_folder(folder, settings(1, len(layers), layers), 2 << 20)) as engine:
        assert answers(engine) == expected
