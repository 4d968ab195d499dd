"""What `quire deploy` refuses by name, before it needs Ray."""

from __future__ import annotations

import pytest

from quire.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--record", "run.log"), "quire: --record run.log names one file: each replica would do so"),
        (("--kv-events", "tcp://*:5557"), "quire: --kv-events tcp://*:5557 listens on one port"),
        (
            ("--launch", "environment"),
            "--launch environment starts the ranks of one server, and Ray starts the replicas",
        ),
    ],
)
def test_what_several_replicas_cannot_do_is_refused_by_name(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["deploy", "--device", "cpu", "--port", "0", *arguments])
    assert code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]
