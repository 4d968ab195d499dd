"""The hub accepts every connection and hands it to the front that has the fewest: the bound on connections is one for
all, and no front gets more than its part, however many arrive at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence

from quire.serve import logs
from quire.serve.fronts.processes import FrontProcess
from quire.serve.protocol import ONE_TOO_MANY

AT_ONCE = 64
"""Connections that are accepted before anything else is done."""
PAUSE_SECONDS = 1.0
"""After the system could not accept one."""
_logger = logging.getLogger("uvicorn.error")


class Dispatcher:
    def __init__(
        self, listener: socket.socket, fronts: Callable[[], Sequence[FrontProcess]], most_connections: int
    ) -> None:
        """`fronts`: those that take connections now."""
        listener.setblocking(False)
        self._listener, self._fronts, self._most = listener, fronts, most_connections
        self._is_closed = False

    def resume(self) -> None:
        if not self._is_closed:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def pause(self) -> None:
        """Connections wait in the kernel."""
        asyncio.get_running_loop().remove_reader(self._listener)

    def close(self) -> None:
        self._is_closed = True
        self.pause()

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            fronts = self._fronts()
            if not fronts:
                self.pause()  # until one has started
                return
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # the client has left again
            except OSError as error:
                logs.write("http", "error", message=f"cannot accept a connection: {type(error).__name__}")
                self.pause()
                asyncio.get_running_loop().call_later(PAUSE_SECONDS, self.resume)
                return
            with connection:
                self._hand(connection, fronts)

    def _hand(self, connection: socket.socket, fronts: Sequence[FrontProcess]) -> None:
        if sum(front.connections for front in fronts) < self._most:
            for front in sorted(fronts, key=lambda one: (one.connections, one.handed)):
                if front.hand(connection):
                    return
        _logger.warning("there are %s connections already: one more was closed", self._most)
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.send(ONE_TOO_MANY)
