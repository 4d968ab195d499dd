"""A server that cannot start says why, and ends. One that has served tries again until it is stopped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path

import pytest

from quire.cli.main import main
from running_server import WAIT_SECONDS, running_server


def test_a_server_that_cannot_boot_says_why_before_it_reads_a_weight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_PORT", "x")
    assert main(["serve", str(tmp_path)]) == 2
    assert "the environment: --port" in capsys.readouterr().err
    monkeypatch.delenv("QUIRE_PORT")
    assert main(["serve", "--port", "0", str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err
    assert main(["serve", "--port", "99999", str(tmp_path)]) == 2
    assert "port is 99999: give 0 to 65,535" in capsys.readouterr().err


def test_a_server_whose_address_is_taken_or_whose_weights_are_broken_says_so_and_ends(
    tiny_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(tiny_folder), "--pool", "2MiB", "--port", port]) == 2
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in capfd.readouterr().err
    broken = tmp_path / "broken"
    shutil.copytree(tiny_folder, broken)
    (broken / "model.safetensors").write_bytes(b"no weights")
    assert main(["serve", str(broken), "--pool", "2MiB", "--port", "0"]) == 2
    assert "cannot be read" in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.story
def test_a_server_whose_engine_cannot_start_again_ends_without_an_error_when_it_is_stopped(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """A supervisor would take the exit code of an engine that failed after the first start for a start that failed. Red
    if any failure of an engine were kept as the server's own."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    with running_server(str(folder), "--pool", "2MiB", "--max-length", "256", model="model") as server:
        (folder / "model.safetensors").write_bytes(b"no weights")
        os.kill(server.engine, signal.SIGKILL)
        server.until("the next engine has failed", lambda: len(server.told("engine_died")) > 1)
        assert "cannot be read" in server.told("engine_failed")[0]["message"]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WAIT_SECONDS) == 0, "".join(server.raw_logs[-5:])
