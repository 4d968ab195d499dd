"""What `quire deploy` refuses, each in one line and before a replica starts."""

from __future__ import annotations

from pathlib import Path
from socket import create_server

import pytest

from conftest import SIZE
from deployed import WAIT_SECONDS, Deployed
from tiny_folder import make_folder


def refused(*arguments: str) -> tuple[int, str]:
    """Exit code and last line. Nothing is left of it."""
    deployment = Deployed(*arguments)
    try:
        deployment.process.wait(WAIT_SECONDS)
        code = deployment.end()
    finally:
        deployment.kill_all()
    return code, deployment.lines[-1]


def test_more_replicas_than_the_machine_has_room_for_are_refused_with_the_numbers() -> None:
    code, line = refused(*SIZE, "--replicas", "900", "--device", "cpu", "--port", "0")
    assert code == 2
    assert line.startswith("quire: 900 replicas need 900 CPUs, 1 CPU each, and Ray has ")
    assert "lower --replicas to " in line


def test_a_command_that_is_stopped_while_replicas_start_leaves_nothing() -> None:
    deployment = Deployed(*SIZE, "--replicas", "1", "--device", "cpu", "--port", "0")
    try:
        deployment.until("a replica starts", lambda: bool(deployment.processes("quire.cli.replica")))
        assert deployment.end() == 130
    finally:
        deployment.kill_all()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--record", "run.log"), "quire: --record run.log names one file: each replica would do so"),
        (("--kv-events", "tcp://*:5557"), "quire: --kv-events tcp://*:5557 listens on one port"),
        (("--replicas", "4..1"), "write 1..4"),
        (("--ray-address", "127.0.0.1:9"), "quire: no Ray cluster answers at 127.0.0.1:9: Connection refused"),
    ],
)
def test_what_several_replicas_cannot_do_is_refused_by_name(arguments: tuple[str, ...], says: str) -> None:
    code, line = refused(*SIZE, "--device", "cpu", "--port", "0", *arguments)
    assert (code, says in line) == (2, True), line


def test_a_port_in_use_is_refused() -> None:
    with create_server(("127.0.0.1", 0)) as listener:
        code, line = refused(*SIZE, "--port", str(listener.getsockname()[1]))
    assert (code, "Address already in use; choose another --host or --port" in line) == (2, True), line


def test_a_replica_that_cannot_start_says_why(tmp_path: Path) -> None:
    """With the words of `quire serve`, from a process on Ray: the weights are there and cannot be read."""
    (weights,) = make_folder(tmp_path).glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1000])
    code, line = refused(str(tmp_path), "--pool", "2MiB", "--max-length", "512", "--device", "cpu", "--port", "0")
    assert code != 0
    assert line.startswith(f"quire: the weights of {tmp_path} cannot be read: ")
