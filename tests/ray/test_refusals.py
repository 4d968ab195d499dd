"""What `quire deploy` refuses, each in one line and before a replica starts."""

from __future__ import annotations

from pathlib import Path
from socket import create_server

from conftest import SIZE
from deployed import WAIT_SECONDS, Deployed
from shared_head import Head
from tiny_folder import make_folder


def refused(*arguments: str, head: Head | None = None) -> tuple[int, str]:
    """Exit code and last line. Nothing is left of it. `head`: it joins this cluster."""
    address = () if head is None else ("--ray-address", head.address)
    deployment = Deployed(*arguments, *address, environment=None if head is None else head.variables)
    try:
        deployment.process.wait(WAIT_SECONDS)
        code = deployment.end()
    finally:
        deployment.kill_all()
    return code, deployment.lines[-1]


def test_more_replicas_than_the_machine_has_room_for_are_refused_with_the_numbers(
    head: Head,
) -> None:
    code, line = refused(*SIZE, "--replicas", "900", "--device", "cpu", "--port", "0", head=head)
    assert code == 2
    assert line.startswith("quire: 900 replicas need 900 CPUs, 1 CPU each, and Ray has 4 CPUs on 2 machines: ")
    assert "lower --replicas to 4 or add machines" in line


def test_a_command_that_is_stopped_while_replicas_start_leaves_nothing() -> None:
    deployment = Deployed(*SIZE, "--replicas", "1", "--device", "cpu", "--port", "0")
    try:
        deployment.until("a replica starts", lambda: bool(deployment.processes("quire.cli.replica")))
        assert deployment.end() == 130
    finally:
        deployment.kill_all()


def test_a_cluster_that_does_not_answer_is_refused() -> None:
    code, line = refused(*SIZE, "--device", "cpu", "--port", "0", "--ray-address", "127.0.0.1:9")
    assert (code, line.startswith("quire: no Ray cluster answers at 127.0.0.1:9: Connection refused")) == (2, True)


def test_a_port_in_use_is_refused() -> None:
    with create_server(("127.0.0.1", 0)) as listener:
        code, line = refused(*SIZE, "--port", str(listener.getsockname()[1]))
    assert (code, "Address already in use; choose another --host or --port" in line) == (2, True), line


def test_a_replica_that_cannot_start_says_why(tmp_path: Path, head: Head) -> None:
    """With the words of `quire serve`, from a process on Ray: the weights are there and cannot be read."""
    (weights,) = make_folder(tmp_path).glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1000])
    size = ("--pool", "2MiB", "--max-length", "512")
    code, line = refused(str(tmp_path), *size, "--device", "cpu", "--port", "0", head=head)
    assert code != 0
    assert line.startswith(f"quire: the weights of {tmp_path} cannot be read: ")
