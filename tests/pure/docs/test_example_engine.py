"""The example engine in the docs runs, and is as short as it says."""

from __future__ import annotations

import runpy
from pathlib import Path

from quire.memory import Budget, Settings, make_plan, read_model

EXAMPLE = Path(__file__).parents[3] / "docs" / "example_engine.py"


def test_the_example_engine_serves_everyone_in_a_pool_that_is_too_small_for_all() -> None:
    engine = runpy.run_path(str(EXAMPLE))
    settings = Settings(max_requests=8, batch_tokens=512, max_length=4096)
    smallest = make_plan(read_model("gemma-3-270m"), settings, Budget(pool_bytes=64 << 20)).require_fit()
    work = [(1500, 40), (700, 30), (3000, 20), (10, 60)]
    assert engine["serve"](smallest, work) == {0: 40, 1: 30, 2: 20, 3: 60}
    assert engine["serve"](smallest, [(4096, 1), (5, 5)]) == {1: 5}


def test_the_example_engine_has_about_sixty_lines_of_code() -> None:
    lines = [line for line in EXAMPLE.read_text().splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) <= 75
