"""A difference, applied to the earlier document, gives the later one."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from quire.inspect.difference import applied, difference
from quire.inspect.document import ServerView, Subject, document
from quire.inspect.look import look
from small_engines import engine_for, request, small_plan

SCALARS = st.none() | st.integers(-9, 9) | st.text("ab", max_size=2)
LISTS = st.lists(SCALARS, max_size=8)
DOCUMENTS = st.recursive(
    SCALARS | LISTS,
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=4) | st.lists(inner, max_size=3),
)


@pytest.mark.law
@examples(400)
@given(before=DOCUMENTS, after=DOCUMENTS)
def test_a_difference_gives_the_later_document_and_changes_neither(before: Any, after: Any) -> None:
    kept = copy.deepcopy((before, after))
    change = json.loads(json.dumps(difference(before, after)))
    assert applied(before, change) == after
    assert (before, after) == kept
    assert (change is None) == (before == after)


def test_a_list_says_where_it_changed_unless_that_is_longer() -> None:
    before = list(range(9))
    assert difference(before, [*before[:8], 0]) == {"at": [8], "to": [0]}
    assert difference(before, before[::-1]) == {"set": before[::-1]}


def test_objects_in_a_list_are_compared_field_by_field() -> None:
    before = [{"a": 1, "b": [1, 2, 3, 4]}, {"a": 2}]
    after = [{"a": 1, "b": [1, 2, 3, 5]}, {"a": 2}]
    assert difference(before, after) == {"at": [0], "by": [{"in": {"b": {"at": [3], "to": [5]}}}]}


def test_a_run_is_followed_by_differences_alone() -> None:
    """What the page has after each of them is the document; a step of a few requests takes a small part of it."""
    plan = small_plan(["full", "window"], 2000)
    engine, _ = engine_for(plan)
    for number in range(8):
        engine.submit(request(f"r{number}", 30 + number, 20))
    subject, server = Subject.of(plan), ServerView("server", "ready")
    page, sizes = document(subject, server, look(engine, 0.0)), []
    while engine.step():
        now = document(subject, server, look(engine, 0.0))
        change = json.loads(json.dumps(difference(page, now)))
        page = applied(page, change)
        assert page == now
        sizes.append(len(json.dumps(change)) / len(json.dumps(now)))
    assert max(sizes) < 0.2
