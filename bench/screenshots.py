"""Draws the pictures of docs/inspector.md and of README: a simulated engine that is short of memory, in Chromium.

    python bench/screenshots.py [FOLDER]

The trace, the plan and the step are the same each time, so a picture changes only if the page does.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browsers"))

from browser import Browser, driven
from quire.core.rules import Rules
from quire.inspect.local import LocalServer
from quire.inspect.plan_page import plan_page
from quire.inspect.recorded import Recorded
from quire.models.read import read_model
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.planner.document import document
from quire.route.policies import AnyReplica
from quire.simulate.cost import cost_model
from quire.simulate.devices import speed_of
from quire.simulate.replay import Fleet
from quire.simulate.replica import Hardware
from quire.simulate.synthetic import make_trace

MODEL, SHEETS, REQUESTS, RATE = "gemma-3-27b", 420, 160, 60.0
SIZE = {"width": 1320, "height": 860}


def simulated(folder: Path) -> Recorded:
    """More arrives than the pool holds, so that requests wait."""
    model = read_model(MODEL)
    plan = make_plan(model, Settings(max_requests=64, max_length=32_768), Budget(sheets=(SHEETS,)))
    cost = cost_model(plan, model, speed_of("h100", None, None), None, None)
    hardware = replace(Hardware(plan, cost, Rules()), record=folder / "run.jsonl")
    fleet = Fleet(hardware, make_trace("chat", REQUESTS, 0).at_rate(RATE), AnyReplica(), 1)
    fleet.play()
    fleet.replicas[0].engine.close()
    return Recorded(folder / "run.jsonl", "simulation", model)


def moment(recorded: Recorded) -> tuple[int, str]:
    """Shortly before the longest queue begins to shrink, and the request that waits at its head."""
    moments = recorded.at(0)["recording"]["moments"]
    ends = [step for step, what in zip(moments["step"], moments["what"], strict=True) if what == "admitted"]
    waiting = {step: recorded.at(step)["requests"]["waiting"] for step in (end - 2 for end in ends)}
    step = max(waiting, key=lambda one: waiting[one])
    table = recorded.at(step)["requests"]["table"]
    return step, str(table["name"][table["state"].index(0)])


def draw(browser: Browser, url: str, path: Path, scheme: str, text: str) -> None:
    browser.open(url)
    browser.do("scheme", value=scheme)
    browser.until(f"it has {text!r}", lambda: text in browser.text("body"))
    browser.do("screenshot", path=str(path), **SIZE)
    print(f"{path}: {path.stat().st_size / 1e3:,.0f} kB")


def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        recorded = simulated(Path(scratch))
        step, request = moment(recorded)
        page = Path(scratch) / "plan.html"
        plan = make_plan(read_model(MODEL), Settings(), Budget(pool_bytes=20 << 30))
        page.write_text(plan_page(document(plan) | {"planned_for": "a pool of 20 GiB"}))
        with LocalServer(recorded, 0) as server, driven("chrome", Path(scratch) / "profile") as browser:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            at = f"?step={step}"
            draw(browser, f"{server.url}#requests{at}", folder / "inspector.png", "light", "wait")
            one = f"{server.url}#requests/{request}{at}"
            draw(browser, one, folder / "inspector-request.png", "dark", "Until when")
            draw(browser, f"{server.url}#reuse{at}", folder / "inspector-reuse.png", "light", "Prefix lookups")
            draw(browser, page.as_uri(), folder / "plan.png", "light", "Requests at once")
            server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "images")
