"""What the page shows is what the server's plan, metrics and engine say, in Chromium and in Firefox."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from browser import Browser
from chaos import Crowd
from running_server import RunningServer
from serve_kit import CHAT, body, chat, wait_for_tokens

LONG = {"max_tokens": 400, "stream": True, "ignore_eos": True}
SQUARES = """(() => {
  const canvas = document.querySelector("#canvases canvas"), context = canvas.getContext("2d");
  const ratio = devicePixelRatio;
  const free = getComputedStyle(document.documentElement).getPropertyValue("--free").trim();
  const shown = canvas.getAttribute("aria-label").match(/of ([\\d,]+) sheets/)[1].replaceAll(",", "");
  const cell = %s, columns = Math.floor(canvas.clientWidth / cell);
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = free; probe.fillRect(0, 0, 1, 1);
  const empty = probe.getImageData(0, 0, 1, 1).data.join();
  return [...Array(Number(shown)).keys()].map((sheet) => {
    const x = (sheet %% columns + 0.25) * cell * ratio, y = (Math.floor(sheet / columns) + 0.25) * cell * ratio;
    return context.getImageData(Math.round(x), Math.round(y), 1, 1).data.join() !== empty;
  });
})()"""
CELL = 26
"""Side of a square in a small pool."""


def open_page(browser: Browser, server: RunningServer, place: str = "") -> None:
    browser.open(f"{server.address}/inspect{place}")
    browser.until_text("#status", "running")


@contextmanager
def streaming(server: RunningServer, **named: str) -> Iterator[str]:
    """The engine's name of a request in progress."""
    asked = {"json": body(**LONG), "headers": named}
    with server.client() as client, client.stream("POST", CHAT, **asked) as stream, server.slowed():
        lines = stream.iter_lines()
        yield wait_for_tokens(lines, 2)["id"].partition("-")[2] + "-0"


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_squares_are_the_plans_sheets_and_bytes_are_those_of_the_metrics(
    browser: Browser, server: RunningServer
) -> None:
    """The colours on the canvas, too: as many squares are not free as kinds have sheets."""
    with server.client() as client:
        chat(client, max_tokens=60, messages=[{"role": "user", "content": "the lazy dog " * 20}])
        server.until("it is audited", server.is_audited)
        plan = client.get("/v1/plan").json()
    open_page(browser, server, "#pool")
    browser.until_text("#status", "audit ok")
    taken = server.metric("quire_sheets_of_kind")
    assert taken > 0
    assert len(browser.evaluate(SQUARES % CELL)) == plan["sheets"] == server.metric("quire_sheets")
    browser.until("the drawing is of the last step", lambda: sum(browser.evaluate(SQUARES % CELL)) == taken)
    (row,) = browser.table("Pages by kind")
    kind = plan["kinds"][0]
    assert row[0] == kind["name"]
    shares = [float(share) for share in re.findall(r"([\d.]+) %", browser.text("#view .counts"))]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert shares[1] > 0
    for place, state in ((4, "used"), (5, "cached"), (9, "free")):
        assert number(row[place]) == server.metric("quire_pages", kind=kind["name"], state=state)
    assert number(row[11]) == server.metric("quire_pages", state="cached") * kind["page_bytes"] > 0
    browser.evaluate("document.querySelector('#memory details').open = true")
    lines = {line[0]: number(line[2]) for line in browser.table("Bytes of the bars")}
    assert lines["pool: cached"] == number(row[11])
    for line in plan["ledger"]:
        assert lines[f"planned: {line['name']}"] == line["bytes"]
    browser.require_quiet(server.address)


def test_a_running_request_is_listed_explained_and_lit(browser: Browser, server: RunningServer) -> None:
    open_page(browser, server)
    with streaming(server, **{"x-request-id": "lit-one"}) as name:
        browser.until("it is listed", lambda: any(row[0] == "lit-one" for row in browser.table("List of requests")))
        browser.click("th a", "lit-one")
        browser.until_text(".one pre", "Runs:")
        assert name in browser.text(".one .lines")
        assert name in browser.evaluate("decodeURIComponent(location.hash)")
        assert browser.table("Its latest events")[0][0] == "accepted"
        assert number(browser.table("Pages that it holds")[0][3]) > 0
    browser.until_text(".one pre", "ended")
    browser.require_quiet(server.address)


def test_the_page_answers_what_a_newcomer_asks(chromium: Browser, server: RunningServer) -> None:
    """Which request holds most memory? Why does this one wait, until when, and for whom? Why was this prefix not
    reused? What if the pool were half? Requests have the names that their clients gave them."""
    with crowded(server, 12) as everyone:
        open_page(chromium, server)
        chromium.until("some wait for memory", lambda: bool(waiting_for_memory(chromium)))
        greatest = chromium.text("#view .counts a")
        chromium.evaluate(ORDER_BY_MEMORY)
        chromium.until(
            "it is first", lambda: chromium.table("List of requests")[0][0] == chromium.text("#view .counts a")
        )
        assert greatest in everyone
        row = waiting_for_memory(chromium)[-1]
        assert re.fullmatch(r"after [\d,]+ steps?|within about [\d.]+ (s|min|h)", row[7])
        assert re.search(r"Together they hold .* of the pool; with shared pages", chromium.text("#view"))
        chromium.click("th a", row[0])
        chromium.until_text(".one pre", "Waits: not enough free KV memory")
        assert set(chromium.evaluate("[...document.querySelectorAll('.one pre a')].map((one) => one.text)")) <= everyone
        assert "Until when: it starts after" in chromium.text(".one .lines")
        chromium.evaluate("location.hash = 'reuse'")
        chromium.until("there are lookups", lambda: bool(chromium.table("The latest lookups")))
        chromium.click("#view th a", next(row[0] for row in chromium.table("The latest lookups") if row[0] in everyone))
        chromium.until_text(".one .lines", "prompt tokens were found in the pool")
    chromium.evaluate("location.hash = 'what-if'")
    chromium.until("there are answers", lambda: len(chromium.table("The planner's answers")) > 1)
    assert chromium.table("The planner's answers")[1][0] == "half the pool"
    chromium.require_quiet(server.address)


def test_names_in_a_text_become_links_and_nothing_else_does(chromium: Browser, server: RunningServer) -> None:
    """A name may begin another one, or be a number that stands for something else."""
    open_page(chromium, server)
    code = """import("/inspect/names.js").then(({ linked }) => linked(%r, ["r1", "r10", "10", "cache", "a.b"], "r1")
      .map((part) => part.hash ?? part))"""
    parts = chromium.evaluate(code % "r1 waits: r10 holds 10, xr1 and r1-0 and a.b and aXb hold 1, cache holds 2")
    assert "".join(parts) == (
        "r1 waits: #requests/r10 holds 10, xr1 and r1-0 and #requests/a.b and aXb hold 1, cache holds 2"
    )


def test_no_token_is_said_to_be_new_where_a_part_of_a_unit_may_have_been_computed(
    chromium: Browser, server: RunningServer
) -> None:
    """124 of 290 tokens were computed before: a unit of them is found, and 60 are not."""
    open_page(chromium, server)
    code = """import("/inspect/document.js").then((words) => [
      words.lookup("hit", 290, 64, 64), words.lookup("hit", 290, 256, 64), words.lookup("no_overlap", 290, 0, 64),
      words.notFound(290, 64, {}, 64, "hit"), words.notFound(290, 64, { evicted: 192 }, 64, "hit"),
      words.notFound(290, 0, {}, 64, "disabled")])"""
    units = "not found: reuse is in whole units of 64 tokens, so up to"
    assert chromium.evaluate(code) == [
        "found in part",
        "found in the pool",
        "no cached prompt starts with the same tokens",
        f"226 {units} 63 of these may have been computed before",
        f"192: evicted before the request arrived; 34 {units} 34 of these may have been computed before",
        "290 not looked up",
    ]


def test_a_server_without_keys_has_no_table_of_tenants(chromium: Browser, server: RunningServer) -> None:
    open_page(chromium, server, "#sessions")
    with streaming(server):
        chromium.until_text("#status", "1 running")
        assert "Leases" in chromium.text("#view")
        assert "Tenants" not in chromium.text("#view")


def test_sizes_are_read_as_people_write_them(chromium: Browser, server: RunningServer) -> None:
    open_page(chromium, server)
    code = """import("/inspect/document.js").then(({ bytesOf }) =>
      ["", "64MiB", "1.5 GiB", "2", "100 B", "1 TB", "MiB", "-1"].map((text) => String(bytesOf(text))))"""
    found = chromium.evaluate(code)
    assert found == [*map(str, (0, 64 << 20, 3 << 29, 2 << 30, 100, 10**12)), "NaN", "NaN"]


def waiting_for_memory(browser: Browser) -> list[list[str]]:
    return [row for row in browser.table("List of requests") if row[6].startswith("not enough free KV memory")]


ORDER_BY_MEMORY = """(() => {
  const one = document.querySelector("#order");
  one.value = "memory";
  one.dispatchEvent(new Event("change"));
})()"""


@contextmanager
def crowded(server: RunningServer, count: int) -> Iterator[set[str]]:
    """More long requests than fit at once, named by their clients."""
    names = {f"client-{number}" for number in range(count)}

    def ask(name: str) -> None:
        prompt = [{"role": "user", "content": f"{name} sees the lazy dog " * 6}]
        asked = body(messages=prompt, max_tokens=300, ignore_eos=True)
        with server.client() as client:
            client.post(CHAT, json=asked, headers={"x-request-id": name}).raise_for_status()

    with ThreadPoolExecutor(count) as threads, server.slowed():
        asked = [threads.submit(ask, name) for name in names]
        yield names
    for one in asked:
        one.result()


def test_a_killed_engine_shows_a_banner_and_comes_back(browser: Browser, server: RunningServer) -> None:
    """With its last words and its restarts; the last drawing stays. The time is printed, for the record."""
    open_page(browser, server, "#pool")
    browser.until_text("#status", "ready")
    before = browser.table("Pages by kind")
    os.kill(server.engine, signal.SIGKILL)
    seconds = browser.until("the banner", lambda: "SIGKILL" in browser.text("#banner"))
    print(f"{browser.kind}: the banner came after {seconds:.2f} s")
    assert browser.table("Pages by kind") == before
    assert "before the engine ended" in browser.text("#old")
    assert "running" not in browser.text("#status")
    browser.until("it is ready again", lambda: browser.text("#status").startswith("ready"))
    browser.until("the banner goes", lambda: not browser.text("#banner"))
    assert "restart" in browser.text("#status")
    browser.until("the drawings are its own", lambda: not browser.evaluate("document.body.hasAttribute('data-old')"))
    browser.require_quiet(server.address)


def test_a_request_that_was_shown_ended_when_the_engine_died(chromium: Browser, server: RunningServer) -> None:
    """The top line says so too. Axe finds nothing in the drawings of an engine that has ended."""
    open_page(chromium, server)
    chromium.until_text("#status", "ready")
    asked = body(**LONG)
    with server.client() as client, client.stream("POST", CHAT, json=asked) as stream:
        with server.slowed():
            name = wait_for_tokens(lines := stream.iter_lines(), 2)["id"].partition("-")[2] + "-0"
            chromium.until_text("#status", "1 running")
            chromium.until("it is listed", lambda: len(chromium.table("List of requests")) == 1)
        os.kill(server.engine, signal.SIGKILL)
        chromium.until_text("#status", "its 1 request ended")
        assert chromium.do("axe") == []
        assert "engine" in "".join(lines)
    chromium.until("it is ready again", lambda: chromium.text("#status").startswith("ready"))
    chromium.evaluate(f"location.hash = 'requests/{name}'")
    chromium.until_text(".one pre", "It ended when the engine died.")


def test_a_stopped_engine_is_shown_as_frozen(browser: Browser, server: RunningServer) -> None:
    open_page(browser, server)
    browser.until_text("#status", "ready")
    with server.client() as client, client.stream("POST", CHAT, json=body(**LONG)) as stream:
        wait_for_tokens(_lines := stream.iter_lines(), 2)  # kept: the client would leave without it
        os.kill(server.engine, signal.SIGSTOP)
        try:
            browser.until_text("#banner", "frozen: the engine has finished no step for")
            assert browser.text("#status").startswith("frozen")
            browser.evaluate("location.hash = 'requests/nothing-0'")
            browser.until_text(".one pre", "The engine does not answer; details come when it does.")
            assert "Events" not in browser.text(".one")
        finally:
            os.kill(server.engine, signal.SIGCONT)
        browser.until("the banner goes", lambda: not browser.text("#banner"))
    browser.until_text("#status", "ready")
    browser.require_quiet(server.address)


def test_the_chat_box_shows_its_own_request(browser: Browser, server: RunningServer) -> None:
    open_page(browser, server, "#reuse")
    browser.evaluate("document.querySelector('#chat-open').click()")
    browser.do("type", text="the quick fox")
    browser.evaluate("document.querySelector('#chat-tokens').value = 40")
    browser.click("#chat button", "Send")
    browser.until_text(".one h2", "-0")
    name = browser.text(".one h2")
    browser.until("it is explained", lambda: bool(browser.text(".one pre")))
    browser.until("it is answered", lambda: len(browser.text("#chat .answer")) > 0)
    assert name in browser.evaluate("decodeURIComponent(location.hash)")
    with server.client() as client:
        assert client.get(f"/v1/inspect/requests/{name}").status_code == 200


def test_a_crowd_leaves_the_page_without_an_error(browser: Browser, server: RunningServer) -> None:
    """`make soak-serve` in small, with the page open and going from view to view."""
    open_page(browser, server)
    crowd = Crowd(server.address, "tiny", [None], clients=12)
    crowd.run(seconds=4, watch=lambda: True)
    for view in ("pool", "requests", "reuse", "sessions", "tiers", "ranks", "what-if"):
        browser.evaluate(f"location.hash = '{view}'")
        browser.until_text("#nav a[aria-current]", "")
    assert sum(number(row[1]) for row in browser_results(browser)) > 0
    browser.require_quiet(server.address)


def browser_results(browser: Browser) -> list[list[str]]:
    browser.evaluate("location.hash = 'reuse'")
    browser.until("there are results", lambda: bool(browser.table("Admissions by result")))
    return browser.table("Admissions by result")


def test_what_if_shows_the_planners_answers(browser: Browser, server: RunningServer) -> None:
    open_page(browser, server, "#what-if")
    browser.until("there are answers", lambda: bool(browser.table("The planner's answers")))
    with server.client() as client:
        found: dict[str, Any] = client.get("/v1/inspect/what-if").json()["table"]
    shown = [(row[0], number(row[1])) for row in browser.table("The planner's answers")]
    assert shown == list(zip(found["option"], found["requests"], strict=True))
    assert browser.evaluate("document.querySelector('#length').value") == "512"
    browser.evaluate("document.querySelector('#pool-size').value = '64MiB'")
    browser.click("#view button", "Compare")
    browser.until(
        "it is asked", lambda: any("--pool 64.00 MiB" in row[0] for row in browser.table("The planner's answers"))
    )
    browser.evaluate("document.querySelector('#pool-size').value = 'much'")
    browser.click("#view button", "Compare")
    browser.until_text("#view", "much is no size")
    browser.require_quiet(server.address)
