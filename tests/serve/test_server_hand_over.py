"""Two servers: one computes prompts, the other answers; and what becomes of calls when the first one is gone."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from quire.cli.main import main
from running_server import RunningServer, running_server
from serve_kit import SIZE, chat

pytestmark = pytest.mark.servers

LONG = [{"role": "user", "content": "the lazy dog sees the quick brown fox, and " * 8}]
OTHER = [{"role": "user", "content": "the quick brown fox sees the lazy dog, but " * 8}]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("known to two servers and to nobody else\n")
    return file


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def answer(server: RunningServer, messages: list[dict[str, str]]) -> str:
    with server.client() as client:
        return str(chat(client, messages=messages, max_tokens=8, temperature=0).json()["choices"][0]["message"])


@pytest.fixture
def options(tiny_folder: Path, secret: Path) -> tuple[str, ...]:
    return (str(tiny_folder), *SIZE, "--host-memory", "8MiB", "--model-name", "tiny", "--peer-secret", str(secret))


def test_a_prompt_is_computed_there_and_answered_here_and_here_alone_when_the_other_is_gone(
    options: tuple[str, ...],
) -> None:
    """The other is killed, and its engine does not outlive it."""
    peer = ("--peer", f"127.0.0.1:{free_port()}")
    here, there = ("--page-tokens", "32", "--role", "decode"), ("--page-tokens", "16", "--role", "prefill")
    with running_server(*options, *peer, *there, model="tiny") as prefill:
        alone = [answer(prefill, messages) for messages in (LONG, OTHER)]
        assert any("listens at" in line for line in prefill.report)
        with running_server(*options, *peer, *here, model="tiny") as decode:
            assert answer(decode, LONG) == alone[0]
            decode.until("it is idle", decode.is_idle)
            assert decode.metric("quire_loads_total") == 1
            assert decode.metric("quire_hand_overs_total", result="handed") == 1
            prefill.until("it is idle", prefill.is_idle)
            prefill.until("it has told so", lambda: prefill.metric("quire_hand_overs_total", result="offered") == 1)
            prefill.kill()
            assert answer(decode, OTHER) == alone[1]
            decode.until("it is idle", decode.is_idle)
            assert decode.metric("quire_loads_total") == 1


def exit_code(*arguments: str) -> int | str | None:
    try:
        return main(list(arguments))
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--role", "decode"), "give --peer and --peer-secret"),
        (("--peer", "127.0.0.1:9000"), "give --role and --peer-secret"),
        (("--role", "decode", "--peer", "9000", "--peer-secret", "x"), "write HOST:PORT"),
        (("--role", "decode", "--peer", "h:1", "--peer-secret", "missing"), "cannot read --peer-secret missing"),
        (("--role", "both", "--peer", "h:1", "--peer-secret", "x"), "prefill"),
    ],
)
def test_half_a_hand_over_is_refused_with_what_is_missing(
    given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], tiny_folder: Path
) -> None:
    assert exit_code("serve", str(tiny_folder), "--port", "0", *given) == 2
    assert said in capsys.readouterr().err


def test_a_short_secret_is_refused(capsys: pytest.CaptureFixture[str], tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("sesame\n")
    given = ("--role", "decode", "--peer", "h:1", "--peer-secret", str(tmp_path / "short"))
    assert exit_code("serve", str(tiny_folder), "--port", "0", *given) == 2
    assert "has 6 bytes: give at least 16" in capsys.readouterr().err
