"""The hub's side of the engine: starts and watches it, and passes on what fronts and engine have for each other."""

from __future__ import annotations

from collections.abc import Callable

from quire.serve.client import EngineClient
from quire.serve.messages import Command, Message, RoutedTick
from quire.serve.starting import Life


class HubEngine(EngineClient):
    """Has no requests of its own."""

    on_routed: Callable[[RoutedTick], None]
    open_names_of_fronts: Callable[[], list[str]]
    open_count_of_fronts: Callable[[], int]

    def open_names(self) -> list[str]:
        """As of the fronts' last beats: they may have ended since."""
        return self.open_names_of_fronts()

    def open_count(self) -> int:
        return self.open_count_of_fronts()

    def pass_on(self, command: Command) -> None:
        """Raises `EngineStarting` if no engine is ready."""
        self._send(command)

    def _receive(self, life: Life, message: Message) -> None:
        if not isinstance(message, RoutedTick):
            super()._receive(life, message)
        elif life is self._life:
            super()._receive(life, message.tick)
            self.on_routed(message)
