"""What every law of an episode can be asked: at each event while it happens, and around each turn of the engine."""

from __future__ import annotations

from quire.core.events import Event


class Law:
    """Something that must hold. Raises a Violation where it does not."""

    def on_event(self, event: Event) -> None:
        """Called from within the scheduler."""

    def before_turn(self) -> None: ...

    def after_turn(self) -> None: ...

    def at_end(self) -> None:
        """After the last request, before the cache is dropped."""
