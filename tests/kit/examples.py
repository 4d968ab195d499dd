"""How much of what can be tried `make test` tries: a quarter of Hypothesis' examples, and of long lists of cases those
that differ most. `make soak` tries all."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

ALL_EXAMPLES = "QUIRE_ALL_EXAMPLES"
"""The variable of the environment that `make soak` sets."""
DEFAULT = 100
"""Examples of a test that does not say how many."""


def scaled(count: int) -> int:
    return count if os.environ.get(ALL_EXAMPLES) else max(count // 4, 1)


def examples(count: int, **more: Any) -> settings:
    """The settings of a test that tries `count` examples in `make soak`."""
    return settings(max_examples=scaled(count), deadline=None, **more)


def rest_in_soak(cases: Iterable[Any], kept: Container[Any]) -> list[ParameterSet]:
    """Parameters of a test: `make test` runs those that are kept, `make soak` the rest. One that is a tuple is spread
    over several names."""
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=() if one in kept else pytest.mark.soak)
        for one in cases
    ]
