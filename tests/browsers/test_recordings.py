"""The same page over a recording: its slider shows what a replay to that step says, and jumps to what happened."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from browser import Browser
from quire.cli.main import main
from quire.inspect.local import LocalServer
from quire.inspect.recorded import Recorded
from recorded_tiers import record


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "run.jsonl"
    record(path, ["full", "window"], 36)
    return path


@pytest.fixture(scope="module")
def address(recording: Path) -> Iterator[str]:
    with LocalServer(Recorded(recording), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


def replayed(recording: Path, step: int, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert main(["replay", str(recording), "--to-step", str(step), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


SLIDE = """(() => {
  const one = document.querySelector("#step");
  one.value = %d;
  one.dispatchEvent(new Event("change"));
})()"""


def slide(browser: Browser, step: int) -> None:
    browser.evaluate(SLIDE % step)
    browser.until_text("#time", f"Step {step:,} of")


def go(browser: Browser, view: str) -> None:
    """The step stays."""
    browser.evaluate(f"location.hash = location.hash.replace(/^#[\\w-]+/, '#{view}')")


def shows_kinds(browser: Browser, kinds: list[list[str]]) -> bool:
    return [[row[0], row[2], row[4], row[5]] for row in browser.table("Pages by kind")] == kinds


def shows_names(browser: Browser, names: list[str]) -> bool:
    return [row[0].split(" · ")[0] for row in browser.table("List of requests")] == names


def test_the_slider_shows_what_a_replay_to_that_step_says(
    browser: Browser, address: str, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kinds and requests, forwards and back."""
    browser.open(f"{address}#pool")
    browser.until_text("#status", "recorded")
    steps = browser.evaluate("Number(document.querySelector('#step').max)")
    for step in (steps // 3, steps // 2, steps // 4):
        slide(browser, step)
        whole = replayed(recording, step, capsys)
        go(browser, "pool")
        kinds = [
            [kind["kind"], f"{kind['sheets']:,}", f"{kind['used_pages']:,}", f"{kind['cached_pages']:,}"]
            for kind in whole["pool"]["stages"][0]["kinds"]
        ]
        browser.until("the kinds are those", partial(shows_kinds, browser, kinds))
        go(browser, "requests")
        browser.until("the requests are those", partial(shows_names, browser, whole["requests"]["table"]["name"]))
        assert f"step {step:,}" in browser.text("#status")
    browser.require_quiet(address.removesuffix("/inspect"))


def test_a_preempted_request_names_its_cause(browser: Browser, address: str) -> None:
    """From the start of the recording with one button and one click."""
    browser.open(f"{address}#requests?step=0")
    browser.until_text("#time", "Step 0 of")
    browser.click("#time button", "Next preemption")
    browser.until("a request was preempted", lambda: any(row[5] == "1 ×" for row in browser.table("List of requests")))
    browser.click("th a", next(row[0] for row in browser.table("List of requests") if row[5] == "1 ×"))
    browser.until("its events are there", lambda: "preempted" in str(browser.table("Its latest events")))
    event = next(row for row in browser.table("Its latest events") if row[0] == "preempted")
    assert "needs its pages" in event[3]
    assert event[4]
    assert event[4] in event[3]
    browser.require_quiet(address.removesuffix("/inspect"))
