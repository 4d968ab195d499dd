"""Keys stay in the page, other tenants stay out of it, and it can be used by keyboard and with a screen reader."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest

from browser import Browser
from running_server import RunningServer
from serve_kit import CHAT, body, chat, wait_for_tokens

VIEWS = ("pool", "requests", "reuse", "sessions", "tiers", "ranks", "what-if")
LISTEN = """(() => {
  window.received = [];
  const before = window.fetch;
  window.fetch = async (...given) => {
    const answer = await before(...given);
    if (!answer.body) return answer;
    const [one, other] = answer.body.tee();
    (async () => {
      const reader = one.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) window.received.push(part.value);
    })().catch(() => {});
    return new Response(other, answer);
  };
})()"""
FOCUSABLE = """(() => {
  const kinds = "a[href], button:not([disabled]), input, select, textarea, summary, [tabindex='0']";
  const all = [...document.querySelectorAll(kinds)].filter((one) => one.checkVisibility({ visibilityProperty: true }));
  return all.filter((one) => !one.closest("[hidden]")).length;
})()"""
NUMBER_FOCUS = """(() => { window.met ??= new Set(); const one = document.activeElement;
  if (one && one !== document.body) window.met.add(one); return window.met.size; })()"""


NOTE_SPEECH = """(() => {
  window.spoken = [];
  window.frames = 0;
  const note = (changes) => changes.forEach(({ target }) => {
    const one = target.nodeType === 1 ? target : target.parentElement;
    const live = one?.closest("[role=status], [role=alert], [role=log], [aria-live]");
    if (live) window.spoken.push(live.textContent);
    if (one?.closest("#status")) window.frames++;
  });
  const everything = { subtree: true, childList: true, characterData: true };
  new MutationObserver(note).observe(document.body, everything);
})()"""
LONG = body(max_tokens=440, stream=True, ignore_eos=True)


def enter_key(browser: Browser, key: str) -> None:
    browser.until("it asks for a key", lambda: bool(browser.evaluate("document.querySelector('#key').open")))
    browser.do("type", text=key)
    browser.press("Enter")
    browser.until_text("#status", "running")


def test_no_byte_that_a_page_receives_names_another_tenant(
    browser: Browser, keyed: tuple[RunningServer, str, str]
) -> None:
    """Alice goes through all views while Bob chats and holds a session."""
    server, alice, bob = keyed
    with server.client(bob) as client:
        prompt = [{"role": "user", "content": "the quick brown fox sees the lazy dog " * 12}]
        answer = chat(client, messages=prompt, max_tokens=4, retain={"seconds": 600, "session": "bobs-session"}).json()
        long = body(max_tokens=440, stream=True, ignore_eos=True)
        asked = {"json": long, "headers": {"x-request-id": "bobs-call"}}
        with client.stream("POST", CHAT, **asked) as stream, server.slowed():
            lines = stream.iter_lines()  # kept: the client would leave without it
            running = wait_for_tokens(lines, 2)["id"].partition("-")[2]
            browser.open(f"{server.address}/inspect")
            browser.until("it asks for a key", lambda: bool(browser.evaluate("document.querySelector('#key').open")))
            browser.evaluate(LISTEN)
            enter_key(browser, alice)
            for view in VIEWS:
                browser.evaluate(f"location.hash = '{view}'")
                browser.until(f"{view} is shown", lambda: bool(browser.text("#view")))
            browser.until("frames come", lambda: browser.evaluate("received.length") > 4)
            sent = json.dumps(browser.evaluate("[received.join(''), document.documentElement.outerHTML]"))
    assert "alice" in sent
    assert not [secret for secret in ("bob", running, answer["id"].partition("-")[2]) if secret in sent]


def test_a_key_is_kept_in_the_page_alone(browser: Browser, keyed: tuple[RunningServer, str, str]) -> None:
    """A reload forgets it; a wrong one is refused and asked for again."""
    server, alice, _ = keyed
    browser.open(f"{server.address}/inspect")
    browser.until("it asks for a key", lambda: bool(browser.evaluate("document.querySelector('#key').open")))
    browser.do("type", text="nonsense")
    browser.press("Enter")
    browser.until_text("#key-problem", "not known")
    enter_key(browser, alice)
    assert browser.evaluate("[localStorage.length, sessionStorage.length, document.cookie.length]") == [0, 0, 0]
    assert browser.evaluate("document.querySelector('#key-input').value") == ""
    assert alice not in browser.evaluate("document.documentElement.outerHTML + location.href")
    browser.do("reload")
    browser.until("it asks again", lambda: bool(browser.evaluate("document.querySelector('#key')?.open")))


def test_a_page_without_a_stream_says_why(chromium: Browser, keyed: tuple[RunningServer, str, str]) -> None:
    """A key that has all its streams open reads so on one more page, instead of that the server does not answer."""
    server, _, bob = keyed
    with server.client(bob) as client, ExitStack() as stack:
        reading = [stack.enter_context(client.stream("GET", "/v1/inspect/stream")).iter_lines() for _ in range(8)]
        assert all(next(lines).startswith("data: ") for lines in reading)
        chromium.open(f"{server.address}/inspect")
        enter_key(chromium, bob)
        chromium.until_text("#banner", "8 streams of the inspector are open with this key, 8 may be: close one")
    chromium.until("it is shown again", lambda: not chromium.text("#banner"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_view(chromium: Browser, server: RunningServer, scheme: str) -> None:
    with (
        server.client() as client,
        client.stream("POST", CHAT, json=body(max_tokens=440, stream=True, ignore_eos=True)) as stream,
        server.slowed(),
    ):
        lines = stream.iter_lines()
        name = wait_for_tokens(lines, 2)["id"].partition("-")[2] + "-0"
        chromium.open(f"{server.address}/inspect")
        chromium.do("scheme", value=scheme)
        found: dict[str, Any] = {}
        for place in (*VIEWS, f"requests/{name}", "pool/0/3"):
            chromium.evaluate(f"location.hash = '{place}'")
            chromium.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
            chromium.until("it is shown", lambda: bool(chromium.text("#view")))
            found[place] = chromium.do("axe")
        chromium.evaluate("document.querySelector('#chat-open').click()")
        found["chat"] = chromium.do("axe")
    assert not {place: what for place, what in found.items() if what}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_question_for_a_key(
    chromium: Browser, keyed: tuple[RunningServer, str, str], scheme: str
) -> None:
    chromium.open(f"{keyed[0].address}/inspect")
    chromium.do("scheme", value=scheme)
    chromium.until("it asks for a key", lambda: bool(chromium.evaluate("document.querySelector('#key').open")))
    assert chromium.do("axe") == []


@pytest.mark.parametrize("view", VIEWS)
def test_the_tab_key_reaches_everything_that_can_be_used(browser: Browser, server: RunningServer, view: str) -> None:
    browser.open(f"{server.address}/inspect#{view}")
    browser.until_text("#status", "running")
    browser.until("it is shown", lambda: bool(browser.text("#view")))
    count = browser.evaluate(FOCUSABLE)
    browser.evaluate("window.met = new Set(); document.activeElement?.blur(); window.focus()")
    for _ in range(count + 4):
        browser.press("Tab")
        browser.evaluate(NUMBER_FOCUS)
    assert browser.evaluate("met.size") >= count


def test_a_screen_reader_is_told_of_a_state_once_and_of_no_frame(browser: Browser, server: RunningServer) -> None:
    """Counts, seconds and drawings change twice a second, and no live region with them. That the engine is frozen is
    said once, however long it lasts, and so is its recovery."""
    browser.open(f"{server.address}/inspect#pool")
    browser.until_text("#status", "ready")
    browser.evaluate(NOTE_SPEECH)
    with server.client() as client, client.stream("POST", CHAT, json=LONG) as stream:
        wait_for_tokens(_lines := stream.iter_lines(), 2)  # kept: the client would leave without it
        browser.until("frames come", lambda: browser.evaluate("frames") > 4)
        assert browser.evaluate("spoken") == []
        os.kill(server.engine, signal.SIGSTOP)
        try:
            browser.until_text("#banner", "frozen: the engine has finished no step for")
            before = browser.text("#banner")
            browser.until("seconds pass", lambda: browser.text("#banner") != before)
        finally:
            os.kill(server.engine, signal.SIGCONT)
    browser.until("it is ready", lambda: browser.text("#status").startswith("ready"))
    spoken = browser.evaluate("spoken")
    states = [text.split(":")[0] for text in spoken]
    assert states.count("frozen") == 1
    assert states[-1] == "The engine is ready."
    assert set(states) <= {"silent", "frozen", "The engine is ready."}
    assert all(one != other for one, other in pairwise(states))


def test_the_map_is_used_by_keys_and_says_what_is_there(browser: Browser, server: RunningServer) -> None:
    """It takes keys, so it is no picture: its role, its name, how it is used, and each square that is moved to."""
    with server.client() as client:
        chat(client, max_tokens=60, messages=[{"role": "user", "content": "the lazy dog " * 20}])
    browser.open(f"{server.address}/inspect#pool")
    browser.until(
        "it is drawn", lambda: bool(browser.evaluate("document.querySelector('canvas')?.getAttribute('aria-label')"))
    )
    browser.evaluate("document.querySelector('canvas').focus()")
    assert browser.evaluate("document.activeElement.getAttribute('role')") == "application"
    described = "document.getElementById(document.activeElement.getAttribute('aria-describedby')).innerText"
    assert "arrow keys" in browser.evaluate(described)
    browser.press("ArrowRight")
    browser.until_text("#pointed", "Sheet 0")
    browser.press("End")
    browser.until_text("#pointed", f"Sheet {server.metric('quire_sheets') - 1:.0f}")
    browser.press("Home")
    browser.press("ArrowRight", times=2)
    browser.until_text("#pointed", "Sheet 2")
    assert browser.text("#announce") == browser.text("#pointed")
    browser.press("Enter")
    browser.until_text(".one h2", "Sheet 2 of stage 0")
    assert browser.evaluate("location.hash") == "#pool/0/2"


def test_the_chat_box_opens_and_closes_by_keys(browser: Browser, server: RunningServer) -> None:
    browser.open(f"{server.address}/inspect")
    browser.until_text("#status", "running")
    browser.evaluate("document.querySelector('#chat-open').focus()")
    browser.press("Enter")
    browser.until("it is open", lambda: browser.focused().startswith("TEXTAREA"))
    browser.press("Escape")
    browser.until("it is closed", lambda: "Ask the model" in browser.focused())
    assert browser.evaluate("document.querySelector('#chat').hidden") is True
