"""What the inspector shows is what the books of the engine say, counted here in other ways."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from quire.cache.pool import Holder
from quire.engine.engine import Engine
from quire.explain.request import explain
from quire.explain.status import status_of
from quire.inspect.detail import request_document, request_view, sheet_document, sheet_view
from quire.inspect.document import PAGES, ServerView, Subject, document
from quire.inspect.look import look
from quire.inspect.views import WAITING
from quire.prefix.leases import LeaseTerms
from small_engines import engine_for, request, run, small_plan

MIXES = (["full"], ["full", "window"], ["full", "state"], ["sink", "chunked"])


def busy_engine(names: list[str], sheets: int | None, steps: int, *, stages: int = 1, requests: int = 9) -> Engine:
    """Requests that share a beginning, on a pool in which not all fit."""
    engine, _ = engine_for(small_plan(names, sheets, stages=stages, rows=4))
    for number in range(requests):
        engine.submit(request(f"r{number}", 20 + 17 * number % 150, 5 + 7 * number % 40, shared=16))
    for _ in range(steps):
        engine.step()
    return engine


def shown(engine: Engine) -> dict[str, Any]:
    return document(Subject.of(engine.scheduler.plan), ServerView("server", "ready"), look(engine))


def column_sums(stage: dict[str, Any]) -> Counter[tuple[int, str]]:
    """Pages by kind and state, from the squares."""
    squares, sums = stage["squares"], Counter[tuple[int, str]]()
    for state in ("used", "cached", "leased", "transfer", "pinned", "backend"):
        for kind, pages in zip(squares["kind"], squares[state] or [0] * stage["sheets"], strict=True):
            sums[kind, state] += pages
    return sums


@pytest.mark.law
@examples(24)
@given(names=st.sampled_from(MIXES), sheets=st.integers(24, 60), steps=st.integers(0, 60))
def test_squares_add_up_to_kinds_and_kinds_are_what_metrics_say(names: list[str], sheets: int, steps: int) -> None:
    """One square for each sheet of the plan. Counting a page in two states, or a sheet under a wrong kind breaks it."""
    engine = busy_engine(names, sheets, steps)
    status = status_of(engine)
    for number, stage in enumerate(shown(engine)["pool"]["stages"]):
        assert len(stage["squares"]["kind"]) == stage["sheets"] == engine.scheduler.plan.stages[number].sheets
        sums, kinds = column_sums(stage), Counter(stage["squares"]["kind"])
        assert kinds[len(stage["kinds"])] == stage["free_sheets"] == status.free_sheets[number]
        metrics = [one for one in status.kinds if one.stage == number]
        for place, (kind, metric) in enumerate(zip(stage["kinds"], metrics, strict=True)):
            for state in ("used", "cached", "pinned", "backend"):
                assert sums[place, state] == kind[f"{state}_pages"] == getattr(metric, f"{state}_pages")
            assert (kind["free_pages"], kind["sheets"]) == (metric.free_pages, metric.sheets)
            assert kinds[place] == kind["sheets"]


@pytest.mark.law
@examples(24)
@given(names=st.sampled_from(MIXES), steps=st.integers(0, 60))
def test_each_request_has_the_bytes_the_steps_and_the_state_that_other_answers_give(
    names: list[str], steps: int
) -> None:
    engine = busy_engine(names, 30, steps)
    table = shown(engine)["requests"]["table"]
    rows = engine.scheduler.rows
    for place, name in enumerate(table["name"]):
        found = explain(engine, name)
        assert found is not None
        assert (table["state"][place] == WAITING) == (found.status == "waiting")
        assert table["at_most_steps"][place] == found.steps
        row = rows.row_of.get(name)
        held = (
            0
            if row is None
            else sum(
                len(one.held(row)) * one.plan.page_bytes
                for memory in engine.scheduler.memories
                for one in memory.tables
            )
        )
        assert table["bytes"][place] == held
    assert set(table["name"]) == set(engine.streams)


def test_a_pipeline_has_a_map_for_each_stage() -> None:
    engine = busy_engine(["full", "window"], None, 9, stages=2)
    stages = shown(engine)["pool"]["stages"]
    assert [one["sheets"] for one in stages] == [one.sheets for one in engine.scheduler.plan.stages]
    assert len(stages) == 2


def test_leased_pages_are_marked_and_no_others() -> None:
    engine, _ = engine_for(small_plan(["full", "window"], 60))
    engine.submit(request("a", 150, 4))
    engine.submit(request("b", 150, 4))
    run(engine, 500)
    assert column_sums(shown(engine)["pool"]["stages"][0])[0, "leased"] == 0
    answer = engine.lease(LeaseTerms("mine", "alice", 60.0), "", request("a", 150, 4).prompt)
    assert answer.refusal is None
    (stage,) = shown(engine)["pool"]["stages"]
    sums = column_sums(stage)
    leased = sum(sums[place, "leased"] * kind["page_bytes"] for place, kind in enumerate(stage["kinds"]))
    assert leased == answer.size_bytes > 0
    assert [kind["leased_pages"] for kind in stage["kinds"]] == [sums[0, "leased"], sums[1, "leased"]]
    assert shown(engine)["sessions"]["leases"]["name"] == ["mine"]


def test_what_a_waiting_request_lacks_is_in_numbers_and_not_in_its_reason() -> None:
    """So that the page can draw it: the reason is one line, and missing is what neither is free nor evictable."""
    engine = busy_engine(["full", "window"], 30, 12)
    name = next(one.request.name for one in engine.scheduler.queue)
    view = request_view(engine, name)
    assert view is not None
    found = request_document(view)
    assert found["status"] == "waiting"
    assert "needs" not in found["reason"] + found["room"]
    for one in found["kinds"]:
        there = one["free_pages"] + one["evictable_pages"]
        assert one["missing_pages"] == max(0, one["needs_pages"] + one["awaited_pages"] - there)


def test_sheets_of_a_request_hold_its_pages_and_each_of_them_names_it() -> None:
    engine = busy_engine(["full", "window"], 40, 12)
    name = next(iter(engine.scheduler.rows.row_of))
    view = request_view(engine, name)
    assert view is not None
    held = request_document(view)["held"]
    row = engine.scheduler.rows.row_of[name]
    tables = engine.scheduler.memories[0].tables
    assert [sum(one["pages"]) for one in held] == [len(table.held(row)) for table in tables]
    for one in held:
        for sheet, pages in zip(one["sheets"], one["pages"], strict=True):
            sheet_found = sheet_view(engine, 0, sheet)
            assert sheet_found is not None
            assert {"name": name, "pages": pages, "is_request": True} in sheet_document(sheet_found)["holders"]


def test_holders_of_all_sheets_add_up_to_the_squares() -> None:
    engine = busy_engine(["full", "window"], 40, 60)
    (stage,) = shown(engine)["pool"]["stages"]
    for sheet in range(stage["sheets"]):
        found = sheet_view(engine, 0, sheet)
        assert found is not None
        assert found.kind == (stage["kinds"] + [{"kind": ""}])[stage["squares"]["kind"][sheet]]["kind"]
        cached = stage["squares"]["cached"][sheet] if stage["squares"]["cached"] else 0
        assert dict(found.others).get("cache", 0) == cached
    assert sheet_view(engine, 0, stage["sheets"]) is None
    assert sheet_view(engine, 1, 0) is None


def test_a_preempted_request_names_its_cause() -> None:
    """The reason in the table is a sentence, and the events name the request that needed the pages."""
    engine, _ = engine_for(small_plan(["full"], None))
    engine.scheduler.admission.typical_output = 1.0  # so that too many are admitted
    for name in ("elder", "other", "third"):
        engine.submit(request(name, 40, 150))
    while not any(event.name == "preempted" for name in engine.history.names for event in engine.history.of(name)):
        assert engine.step()
    requests = shown(engine)["requests"]
    table, reasons = requests["table"], requests["reasons"]
    place = next(place for place, times in enumerate(table["preemptions"]) if times)
    view = request_view(engine, table["name"][place])
    assert view is not None
    (event,) = [one for one in request_document(view)["events"] if one["what"] == "preempted"]
    assert event["code"] == "needs_pages"
    assert event["requests"][0] in event["reason"]
    assert event["requests"][0] in table["name"]
    assert reasons["text"][table["reason"][place]]


def test_lookups_have_the_results_and_causes_of_admissions() -> None:
    engine = busy_engine(["full"], 60, 0, requests=3)
    run(engine, 800)
    again = request("again", 150, 4, shared=16)
    engine.submit(again)
    run(engine, 800)
    engine.submit(request("same", 150, 4, shared=150))
    engine.submit(request("like", 150, 4, shared=150))
    run(engine, 800)
    reuse = shown(engine)["reuse"]
    assert sum(reuse["results"].values()) == len(reuse["latest"]["name"]) == 6
    assert reuse["results"]["hit"] == reuse["latest"]["result"].count("hit") > 0
    assert sum(reuse["latest"]["found"]) == reuse["found_tokens"] > 0
    assert reuse["latest"]["step"] == sorted(reuse["latest"]["step"], reverse=True)


def test_looking_changes_nothing() -> None:
    engine, other = busy_engine(["full", "window"], 30, 10), busy_engine(["full", "window"], 30, 10)
    for _ in range(40):
        look(engine)
        for name in engine.history.names:
            request_view(engine, name)
        sheet_view(engine, 0, 3)
        engine.step()
        other.step()
        for mine, theirs in zip(engine.scheduler.memories, other.scheduler.memories, strict=True):
            for kind in range(len(mine.pool.shelves)):
                own, its = mine.pool.shelves[kind], theirs.pool.shelves[kind]
                assert np.array_equal(own.count(Holder.REQUEST), its.count(Holder.REQUEST))
                assert np.array_equal(own.count(Holder.CACHE), its.count(Holder.CACHE))


def test_pages_of_the_document_are_the_states_of_a_kind() -> None:
    (stage,) = shown(busy_engine(["full"], 30, 5))["pool"]["stages"]
    assert set(PAGES) <= set(stage["kinds"][0])
