"""docs/supported-models.md says what the code does."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import transformers

import supported
from quire.sweep import Case, sweep, types

ROWS = dict(re.findall(r"^(?=\| `([^`]+)`)(.+)$", supported.DOCUMENT.read_text(), re.MULTILINE))
SAMPLED = ("bloom", "hunyuan_v1_dense", "lfm2", "llama", "olmo_hybrid")
"""Types that are run here as well; `make bench-supported` runs all of them."""


@pytest.fixture(autouse=True)
def _same_release() -> None:
    if f"transformers {supported.release()}:" not in supported.DOCUMENT.read_text():
        pytest.skip(f"the page is about another release than transformers {supported.release()}")


@pytest.fixture
def _quiet() -> Iterator[None]:
    """Tiny configurations make transformers wonder."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(verbosity)


def test_every_type_is_on_the_page() -> None:
    assert set(ROWS) == set(types())


@pytest.mark.usefixtures("_quiet")
def test_what_is_refused_without_building_a_model_is_on_the_page_with_the_reason() -> None:
    """And the page refuses few types beyond these: what it says of them needs a model to be built."""
    refused = {name: line for name in types() if (line := supported.refused_by_the_plan(name))}
    assert {name: ROWS[name] for name in refused} == refused
    for name in set(types()) - set(refused):
        passes = f"| `{name}` | pass | {supported.kinds(name)} |"
        assert ROWS[name] == passes or ROWS[name].startswith(f"| `{name}` | refused | ")


@pytest.mark.parametrize("name", SAMPLED)
def test_a_type_that_is_run_again_does_what_the_page_says(name: str) -> None:
    (finding,) = sweep([Case(name)])
    assert supported.row(finding) == ROWS[name]


def test_the_page_says_that_none_fails() -> None:
    assert not [line for line in ROWS.values() if "| fails |" in line]
    assert sum("| pass |" in line for line in ROWS.values()) >= 60
