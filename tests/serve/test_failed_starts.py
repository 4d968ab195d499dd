"""A server that cannot start says why, and ends."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from quire.cli.main import main


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
