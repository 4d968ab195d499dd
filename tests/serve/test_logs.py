"""Lines of the log: JSON for programs, text for people."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest

from quire.serve import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = list(logs._logger.handlers)
    yield
    logs._logger.handlers[:] = before


@pytest.mark.parametrize(
    ("form", "stream", "is_text"),
    [
        ("auto", Terminal, True),
        ("auto", io.StringIO, False),
        ("json", Terminal, False),
        ("text", io.StringIO, True),
    ],
)
def test_lines_are_text_on_a_terminal_and_json_elsewhere_unless_chosen(
    form: str, stream: type[io.StringIO], is_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", stream())
    logs.set_up("info", form)
    logs.write("request", path="/v1/models", status=200, tenant="two words", error=None, finish=["stop"])
    line = logs.sys.stderr.getvalue()  # type: ignore[attr-defined]
    if is_text:
        rest = line.partition(" ")[2]
        assert rest == 'info request path=/v1/models status=200 tenant="two words" finish=["stop"]\n'
    else:
        assert json.loads(line).items() >= {"event": "request", "level": "info", "status": 200, "error": None}.items()


def test_no_value_can_write_a_line_or_a_colour_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    logs.set_up("info", "text")
    logs.write("request", path="/a\n14:00:00 error\x1b[31m", tenant="a=b", request="")
    line = logs.sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert line.count("\n") == 1
    assert "\x1b" not in line
    assert line.endswith('tenant="a=b" request=""\n')
