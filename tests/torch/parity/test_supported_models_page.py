"""docs/supported-models.md says what the code does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest
import transformers

import supported
from quire.sweep import Case, sweep, types

ROWS = dict(re.findall(r"^(?=\| `([^`]+)`)(.+)$", supported.DOCUMENT.read_text(), re.MULTILINE))
SAMPLED = ("bloom", "deepseek_v32", "glm_moe_dsa", "gpt_neo", "lfm2", "llama", "rembert")
"""Types that are run here as well; `make bench-supported` runs all of them."""


IS_SAME_RELEASE = f"transformers {supported.release()}:" in supported.DOCUMENT.read_text()
"""Another release than the page's has other types too, and refuses some for reasons of its own."""


@pytest.fixture
def _quiet() -> Iterator[None]:
    """Tiny configurations make transformers wonder."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(verbosity)


def test_every_type_is_on_the_page() -> None:
    """With another release nearly all are: a few come and go."""
    differing = set(ROWS) ^ set(types())
    assert len(differing) <= (0 if IS_SAME_RELEASE else 30), differing


@pytest.mark.usefixtures("_quiet")
def test_what_is_refused_without_building_a_model_is_on_the_page_with_the_reason() -> None:
    """And the page refuses few types beyond these: what it says of them needs a model to be built."""
    known = [name for name in types() if name in ROWS]
    refused = {name: line for name in known if (line := supported.refused_by_the_plan(name))}
    assert {name: ROWS[name] for name in refused} == refused
    for name in set(known) - set(refused):
        passes = f"| `{name}` | pass | {supported.kinds(name)} |"
        assert ROWS[name] == passes or ROWS[name].startswith(f"| `{name}` | refused | ")


@pytest.mark.parametrize("name", SAMPLED)
def test_a_type_that_is_run_again_does_what_the_page_says(name: str) -> None:
    (finding,) = sweep([Case(name)])
    assert supported.row(finding) == ROWS[name]


def test_none_fails_and_the_page_counts_its_rows() -> None:
    """Every row is one of those that the sentence above the table counts."""
    verdicts = Counter(line.split(" | ")[1] for line in ROWS.values())
    counted = re.search(r"(\d+) run, (\d+) are refused, (\d+) fail\.", supported.DOCUMENT.read_text())
    assert counted is not None
    run, refused, fail = map(int, counted.groups())
    assert (verdicts["pass"], verdicts["refused"], verdicts["fails"]) == (run, refused, fail)
    assert fail == 0 < 60 <= run
