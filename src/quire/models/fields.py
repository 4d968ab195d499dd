"""A configuration, read field by field: every complaint names the field, its value and the fix.

`Fields` remembers what was read (so that what nobody read can be questioned, see `neutral`) and what was taken from
the family's defaults (so that the reader is told).
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.errors import ModelError

LARGEST = 1 << 40
MOST_LAYERS = 4096


def shown(value: object) -> str:
    """A value as a short piece of an error message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def whole_number(value: object, name: str, minimum: int = 1, maximum: int = LARGEST, otherwise: str = "") -> int:
    """`otherwise` is what else could be written, for the message."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ModelError(f"{name} is {shown(value)}: it must be a whole number of at least {minimum}{otherwise}")
    if value > maximum:
        raise ModelError(f"{name} is {shown(value)}: it must be at most {maximum:,}{otherwise}")
    return value


class Fields:
    """One family's view of a configuration. Null counts as absent: that is how configurations write "no"."""

    def __init__(
        self, config: Mapping[str, object], family: str, defaults: Mapping[str, int], prefix: str = ""
    ) -> None:
        self.config = config
        self.family = family
        self.defaults = defaults
        self.prefix = prefix
        self.read: set[str] = set()
        self.notes: list[str] = []

    def raw(self, *names: str) -> object:
        """The first spelling that is present and not null; None when there is none."""
        self.read.update(names)
        return next((self.config[name] for name in names if self.config.get(name) is not None), None)

    def spelling(self, *names: str) -> str:
        """The spelling the configuration uses, for messages."""
        return self.prefix + next((name for name in names if self.config.get(name) is not None), names[0])

    def missing(self, name: str, fix: str) -> ModelError:
        return ModelError(f"{self.prefix}{name} is missing: {fix}")

    def wrong(self, name: str, value: object, fix: str) -> ModelError:
        return ModelError(f"{self.prefix}{name} is {shown(value)}: {fix}")

    def integer(self, *names: str, absent: int | None = None, minimum: int = 1, maximum: int = LARGEST) -> int:
        """Required, unless `absent` says what its absence means or the family has a documented default (then noted)."""
        value = self.raw(*names)
        if value is not None:
            return whole_number(value, self.spelling(*names), minimum, maximum)
        if absent is not None:
            return absent
        default = next((self.defaults[name] for name in names if name in self.defaults), None)
        if default is None:
            raise self.missing(names[0], f"add it to the configuration, {self.family} has no value for it")
        self.notes.append(f"{names[0]} absent: {self.family}'s default {default:,}")
        return default

    def optional_integer(self, *names: str, minimum: int = 1) -> int | None:
        value = self.raw(*names)
        if value is None:
            return None
        return whole_number(value, self.spelling(*names), minimum, otherwise=", or null for none")

    def flag(self, name: str, absent: bool = False) -> bool:
        value = self.raw(name)
        if value is None:
            return absent
        if not isinstance(value, bool):
            raise self.wrong(name, value, "it must be true or false")
        return value

    def text(self, *names: str) -> str | None:
        value = self.raw(*names)
        if value is not None and not isinstance(value, str):
            raise self.wrong(self.spelling(*names), value, "it must be a string")
        return value

    def items(self, name: str) -> list[object] | None:
        value = self.raw(name)
        if value is not None and not isinstance(value, list | tuple):
            raise self.wrong(name, value, "it must be a list")
        return None if value is None else list(value)

    def integers(self, name: str, minimum: int = 0) -> list[int] | None:
        values = self.items(name)
        if values is None:
            return None
        return [whole_number(value, f"{self.prefix}{name}[{i}]", minimum) for i, value in enumerate(values)]

    def per_layer(self, name: str, layers: int) -> list[object] | None:
        """A list with one entry for each layer."""
        values = self.items(name)
        if values is not None and len(values) != layers:
            entries = f"{self.prefix}{name} has {len(values)} entries for {layers} layers"
            raise ModelError(f"{entries}: give one for each layer, or correct num_hidden_layers")
        return values

    def kinds(self, name: str, layers: int, words: Mapping[str, str]) -> list[str] | None:
        """A list of layer names, each translated by `words` into the family's own word for it."""
        values = self.per_layer(name, layers)
        if values is None:
            return None
        for i, value in enumerate(values):
            if not isinstance(value, str) or value not in words:
                raise self.wrong(f"{name}[{i}]", value, f"{self.family} knows {', '.join(words)}")
        return [words[str(value)] for value in values]

    def section(self, name: str) -> Fields | None:
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "it must be an object of fields")
        return Fields(value, self.family, {}, f"{self.prefix}{name}.")

    def unread(self) -> dict[str, object]:
        """Fields nobody asked for, comments left out."""
        return {k: v for k, v in self.config.items() if k not in self.read and not k.startswith("_")}
