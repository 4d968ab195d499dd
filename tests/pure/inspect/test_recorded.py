"""The inspector over a recording: every step has the document that the engine had then, in any order of asking."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request as Call
from urllib.request import urlopen

import pytest

from quire.cli.main import main
from quire.core.errors import InputError
from quire.core.events import Event, RequestPreempted
from quire.inspect.document import VIEWS
from quire.inspect.local import LocalServer
from quire.inspect.page import FILES, HEADERS
from quire.inspect.recorded import Recorded
from recorded_tiers import record


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """With loads, preemptions and cancelled requests."""
    path = tmp_path_factory.mktemp("recorded") / "run.jsonl"
    return path, record(path, ["full", "window"], 36)


@pytest.fixture(scope="module")
def recorded(recording: tuple[Path, list[Event]]) -> Recorded:
    return Recorded(recording[0])


@pytest.fixture(scope="module")
def address(recorded: Recorded) -> Iterator[str]:
    with LocalServer(recorded, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url.removesuffix("/inspect")
        server.shutdown()


def test_going_back_shows_what_going_forward_showed(recorded: Recorded) -> None:
    """A document that depends on what was asked before would differ."""
    steps = [0, 1, recorded.steps // 3, recorded.steps // 2, recorded.steps]
    forward = [recorded.at(step) for step in steps]
    assert [one["step"] for one in forward] == steps
    backward = [recorded.at(step) for step in reversed(steps)]
    assert backward[::-1] == forward
    assert recorded.at() == forward[-1]


def test_the_command_prints_the_document_of_a_step(
    recorded: Recorded, recording: tuple[Path, list[Event]], capsys: pytest.CaptureFixture[str]
) -> None:
    step = recorded.steps // 2
    assert main(["replay", str(recording[0]), "--to-step", str(step), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == recorded.at(step)


def test_each_preemption_is_a_moment_whose_document_shows_it(
    recorded: Recorded, recording: tuple[Path, list[Event]]
) -> None:
    moments = recorded.at(0)["recording"]["moments"]
    found = list(zip(moments["step"], moments["what"], moments["request"], strict=True))
    published = [event for event in recording[1] if isinstance(event, RequestPreempted)]
    assert [request for _, what, request in found if what == "preempted"] == [one.request for one in published]
    assert published
    step, _, request = next(one for one in found if one[1] == "preempted")
    table = recorded.at(step)["requests"]["table"]
    assert table["preemptions"][table["name"].index(request)] == 1
    assert {"preempted", "admitted"} <= {what for _, what, _ in found}


def test_a_step_that_was_not_recorded_is_refused(recorded: Recorded) -> None:
    with pytest.raises(InputError, match=f"no step {recorded.steps + 1:,}: choose one from 0 to {recorded.steps:,}"):
        recorded.at(recorded.steps + 1)


def get(url: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    try:
        with urlopen(Call(url, headers=headers), timeout=30) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except HTTPError as error:
        with error:
            return error.code, error.read(), dict(error.headers)


def test_the_local_server_has_the_page_and_the_documents(recorded: Recorded, address: str) -> None:
    for name, (content, _) in FILES.items():
        status, body, headers = get(f"{address}/inspect/{name}")
        assert (status, body) == (200, content)
        assert headers["content-security-policy"] == HEADERS["content-security-policy"]
    step = recorded.steps // 2
    whole = recorded.at(step)
    assert json.loads(get(f"{address}/v1/inspect?step={step}")[1]) == whole
    for view in VIEWS:
        assert json.loads(get(f"{address}/v1/inspect/{view}?step={step}")[1])[view] == whole[view]
    name = whole["requests"]["table"]["name"][0]
    assert json.loads(get(f"{address}/v1/inspect/requests/{name}?step={step}")[1])["name"] == name
    assert json.loads(get(f"{address}/v1/inspect/sheets/0/0?step={step}")[1])["sheet"] == 0
    assert json.loads(get(f"{address}/v1/inspect/what-if?length=20")[1])["length"] == 20


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/inspect?step=x", 400),
        ("/v1/inspect?step=-1", 400),
        ("/v1/inspect/nothing", 404),
        ("/v1/inspect/requests/nobody", 404),
        ("/v1/inspect/sheets/9/9", 404),
        ("/v1/inspect/sheets/x/9", 400),
        ("/v1/inspect/what-if?length=0", 400),
        (f"/v1/inspect/what-if?pool_bytes={10**400}", 400),
        ("/inspect/../../etc/passwd", 404),
        ("/v2", 404),
    ],
)
def test_the_local_server_refuses_what_is_not_there(address: str, path: str, status: int) -> None:
    found, body, _ = get(address + path)
    assert found == status
    assert json.loads(body)["error"]["message"]


def test_the_local_server_is_called_by_its_own_address_alone(address: str) -> None:
    """A page of another origin, whose name resolves to this machine, reads no recording."""
    assert get(f"{address}/v1/inspect", host="evil.example:80")[0] == 403


def test_the_page_is_small_asks_nobody_else_and_has_no_inline_code() -> None:
    assert sum(len(content) for content, _ in FILES.values()) < 80_000
    page = FILES["index.html"][0].decode()
    for name in re.findall(r'(?:src|href)="(/inspect/[^"]*)"', page):
        assert name.removeprefix("/inspect/") in FILES
    assert not re.search(r"<script(?![^>]*\bsrc=)|\bstyle=|\bon[a-z]+=", page)
    for name, (content, _) in FILES.items():
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(
            r"https?://|\bimport\(|\beval\(|innerHTML|outerHTML|insertAdjacentHTML|localStorage", text
        ), name
