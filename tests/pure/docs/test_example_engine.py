"""The example engine in the docs runs, never hangs, and is as short as it says."""

from __future__ import annotations

import runpy
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quire.memory import Budget, ModelShape, Moves, Plan, Settings, StageMemory, make_plan, read_model
from quire.plan import bound
from small_kinds import layer

EXAMPLE = Path(__file__).parents[3] / "docs" / "example_engine.py"
LONGEST = 200
MIXES = {
    "full and window": (layer("full", 2), layer("window", 3, window=32)) * 2,
    "window and sink": (layer("window", 3, window=40), layer("sink", 2, sinks=4, window=20)),
    "full, window, chunked": (layer("full", 2), layer("window", 3, window=32), layer("chunked", 5, chunk=48)),
    "full, chunked, state": (layer("full", 2), layer("chunked", 3, chunk=48), layer("state", 9)),
}


def serve_counting(plan: Plan, work: list[tuple[int, int]], most_tries: int) -> tuple[dict[int, int], int]:
    """What each request yielded, and how many pages had to be copied; fails when it goes round for ever."""
    engine = runpy.run_path(str(EXAMPLE))
    inside = engine["serve"].__globals__
    grow, counted = inside["grow"], {"tries": 0, "copies": 0}

    def grow_counted(*arguments: Any) -> bool:
        counted["tries"] += 1
        assert counted["tries"] < most_tries, f"it goes round for ever with {work}"
        return bool(grow(*arguments))

    def copy_counted(_memory: StageMemory, moves: list[Moves]) -> None:
        counted["copies"] += sum(len(move.source) for move in moves)

    inside.update(grow=grow_counted, copy=copy_counted)
    return engine["serve"](plan, work), counted["copies"]


def tight_plan(mix: str) -> Plan:
    """Exactly the sheets that a lone request of the longest length needs."""
    settings = Settings(max_requests=3, batch_tokens=16, max_length=LONGEST, page_tokens={"": 4})
    shape = ModelShape("tight", "test", MIXES[mix], max_length=LONGEST, weights_known=False)
    roomy = make_plan(shape, settings, Budget(sheets=(1000,)))
    return make_plan(shape, settings, Budget(sheets=(bound.minimum(roomy.stages[0].kinds, LONGEST, 0),))).require_fit()


def test_the_example_engine_serves_everyone_in_a_pool_that_is_too_small_for_all() -> None:
    engine = runpy.run_path(str(EXAMPLE))
    settings = Settings(max_requests=8, batch_tokens=512, max_length=4096)
    smallest = make_plan(read_model("gemma-3-270m"), settings, Budget(pool_bytes=64 << 20)).require_fit()
    work = [(1500, 40), (700, 30), (3000, 20), (10, 60)]
    assert engine["serve"](smallest, work) == {0: 40, 1: 30, 2: 20, 3: 60}
    assert engine["serve"](smallest, [(4096, 1), (5, 5)]) == {1: 5}


def test_the_example_engine_compacts_where_half_empty_sheets_would_stop_it_and_copies_what_moved() -> None:
    yielded, copies = serve_counting(tight_plan("full, window, chunked"), [(82, 113), (64, 39)], most_tries=2_000)
    assert yielded == {0: 113, 1: 39}
    assert copies > 0


@pytest.mark.parametrize("mix", MIXES)
def test_the_example_engine_ends_in_the_smallest_pool_whatever_the_work(mix: str) -> None:
    plan, random = tight_plan(mix), Random(mix)
    for _ in range(8):
        prompts = [random.randint(1, LONGEST - 1) for _ in range(random.randint(2, 6))]
        work = [(prompt, random.randint(1, LONGEST - prompt)) for prompt in prompts]
        yielded, _ = serve_counting(plan, work, most_tries=10_000)
        assert yielded == {number: outputs for number, (_, outputs) in enumerate(work)}


def test_the_example_engine_is_as_long_as_it_says_and_names_a_request_that_it_refuses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [line for line in EXAMPLE.read_text().splitlines() if line.strip()]
    assert "in 80 lines" in lines[0]
    assert len(lines) <= 80
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    *served, refused = capsys.readouterr().out.splitlines()
    assert served[0] == "request 0, prompt 1500, outputs 40: 40 tokens"
    assert refused == "request 4, prompt 4096, outputs 1: refused: more than 4096 tokens"
