"""A browser that tests drive: a process of node between puppeteer-core (WebDriver BiDi) and Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAMS = {"chrome": ("chromium", "chromium-browser", "google-chrome"), "firefox": ("firefox-esr", "firefox")}
FOCUSED = """(() => {
  const one = document.activeElement;
  return `${one.tagName} ${one.getAttribute("aria-label") ?? one.id ?? ""} ${(one.innerText ?? "").slice(0, 60)}`;
})()"""
WAIT_SECONDS = 60
"""For anything that a page does. No test says how fast it is."""


def program_of(kind: str) -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS[kind])), None)


class Browser:
    def __init__(self, process: subprocess.Popen[str], kind: str) -> None:
        self._process, self.kind = process, kind

    def do(self, what: str, **more: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the driver has ended"
        answer = json.loads(line)
        assert "error" not in answer, f"{what} {more}: {answer.get('error')}"
        return answer["value"]

    def open(self, url: str) -> None:
        self.do("open", url=url)

    def evaluate(self, code: str) -> Any:
        return self.do("evaluate", code=code)

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str, text: str) -> None:
        """The first of these elements that has this text."""
        all_of_them = f"[...document.querySelectorAll({json.dumps(selector)})]"
        self.evaluate(f"{all_of_them}.find((one) => one.textContent === {json.dumps(text)}).click()")

    def press(self, key: str, times: int = 1) -> None:
        self.do("press", key=key, times=times)

    def focused(self) -> str:
        """The element that has the focus, as its tag and text, name or place."""
        return str(self.evaluate(FOCUSED))

    def until(self, what: str, holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> float:
        """Waits for something to become true; returns how long it took."""
        begin = time.monotonic()
        while not holds():
            assert time.monotonic() - begin < seconds, f"still not so: {what}; {self.text('body')[:600]}"
            time.sleep(0.05)
        return time.monotonic() - begin

    def until_text(self, selector: str, part: str) -> None:
        self.until(f"{selector} has {part!r}", lambda: part in self.text(selector))

    def table(self, caption: str) -> list[list[str]]:
        """Cells of the table whose caption begins so."""
        code = (
            "[...document.querySelectorAll('table')].filter((one) => one.caption?.textContent.startsWith("
            f"{json.dumps(caption)})).flatMap((one) => [...one.tBodies[0].rows].map((row) => "
            "[...row.cells].map((cell) => cell.innerText.trim())))"
        )
        return list(self.evaluate(code))

    def require_quiet(self, origin: str) -> None:
        """Nothing was written to the console as an error, and nobody else was asked for anything."""
        seen = self.do("seen")
        assert not seen["console"], seen["console"]
        others = [url for url in seen["urls"] if not url.startswith((origin, "data:"))]  # Firefox has a font of its own
        assert not others
        assert seen["urls"]


@contextmanager
def driven(kind: str, profile: Path) -> Iterator[Browser]:
    program = program_of(kind)
    assert program is not None
    command = ["node", str(HERE / "drive.mjs"), kind, program, str(profile)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE)
    try:
        yield Browser(process, kind)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
