"""The engine on several ranks and stages yields the tokens that it yields on one, whatever happens to requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire.core.dtypes import DType
from quire.core.errors import InputError
from quire.core.request import Request
from quire.core.sampling import Sampling
from quire.engine.engine import Engine, Stream
from quire.options.run import RunOptions
from quire.plan.settings import Settings
from quire.worker.pages.arena import Arena
from split_engine import StagesInTurn, plan_folder, split_engine
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


def test_a_pool_that_is_too_small_for_all_changes_no_token(folder_of: Callable[[str], Path]) -> None:
    """Two ranks of two stages, and requests that are preempted. Red if a page were given away on one stage alone."""
    folder = folder_of("llama")
    seen: list[str] = []
    found = []
    for ranks, stages in ((1, 1), (2, 2)):
        plan = plan_folder(folder, settings(ranks, stages), (160 << 10) // (ranks * stages))
        with split_engine(folder, plan, listeners=[lambda event: seen.append(type(event).__name__)]) as engine:
            found.append(answers(engine))
        assert "RequestPreempted" in seen
        seen.clear()
    assert found[0] == found[1]


def test_keys_and_values_in_8_bits_have_the_same_scales_on_every_rank(folder_of: Callable[[str], Path]) -> None:
    """Scales belong to heads, and each rank has its own heads. Red if ranks found other scales than one process: pages
    of heads could not be exchanged."""
    folder, eight = folder_of("llama"), RunOptions(device="cpu", threads=1, kv_dtype=DType.FP8)
    found = []
    for ranks in (1, 2):
        with split_engine(folder, plan_folder(folder, settings(ranks), 2 << 20, eight), eight) as engine:
            answers(engine)
            arenas = [runner.arena for runner in engine.runner.runners]  # type: ignore[attr-defined]
            found.append([torch.cat([scales_of(arena, layer) for arena in arenas]) for layer in range(4)])
    assert all(one.equal(two) for one, two in zip(*found, strict=True))
    with pytest.raises(InputError, match="keys and values as fp8 do not run on 2 stages yet"):
        plan_folder(folder, settings(1, 2), 2 << 20, eight)


def scales_of(arena: Arena, layer: int) -> torch.Tensor:
    scales = arena.layers[layer]["key"].scales
    assert scales is not None
    return scales
