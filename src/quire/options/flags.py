"""A field of the options carries its flag: name, help, and how its text is read.

    device: str = option("auto", "device", "device to run the model on", choices=DEVICES)
                         default  group     help line
    tiers: Tiers = field(default_factory=Tiers, metadata=part(Tiers))       the flags of a value within this one

The command line, quire.toml, the environment and the keywords of `LLM` all follow from the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, TypeVar

from quire.core.errors import InputError
from quire.options.texts import GREATEST_COUNT, positive

Value = TypeVar("Value")
REQUIRED = MISSING
"""The default of an option that has none."""


@dataclass(frozen=True, slots=True)
class Flag:
    """How one option is set from outside."""

    default: Any
    group: str
    """A command has the flag if it lists this group."""
    help: str
    name: str = ""
    """As it is typed; empty: as the field is called."""
    parse: Callable[[str], Any] = str
    """Reads text, wherever it was given."""
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    fields: tuple[str, ...] = ()
    """The fields that its value sets, in this order, where there are several."""
    is_in_plan: bool = False
    """A saved plan has it already."""

    @property
    def key(self) -> str:
        """Its name among parsed arguments."""
        return self.name.removeprefix("--").replace("-", "_")


@dataclass(frozen=True, slots=True)
class Part:
    """A value with flags of its own within another one."""

    kind: type
    what: str
    """For the message that some of its flags are missing."""


def option(default: Any, group: str, help: str, name: str = "", **more: Any) -> Any:
    """A field of a frozen dataclass, with its flag."""
    return field(default=default, metadata={Flag: Flag(default, group, help, name, **more)})


def part(kind: type, what: str = "") -> Mapping[Any, Any]:
    """Metadata of a field. Where the field's default is None, the part is only there if its flags are given."""
    return {Part: Part(kind, what)}


def flags(kind: type) -> list[Flag]:
    """All flags of a value and of its parts, in the order of the fields."""
    found: list[Flag] = []
    for one in fields(kind):
        if Part in one.metadata:
            found += flags(one.metadata[Part].kind)
        elif Flag in one.metadata:
            own: Flag = one.metadata[Flag]
            found.append(replace(own, name=own.name or "--" + one.name.replace("_", "-")))
    return found


def from_flags(kind: type[Value], given: Mapping[str, Any]) -> Value:
    """The value that parsed arguments describe. What is not among them keeps its default."""
    found: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]
        if Part in one.metadata:
            inner: Part = one.metadata[Part]
            if one.default is not None or _is_given(inner, given):
                found[one.name] = from_flags(inner.kind, given)
        elif Flag in one.metadata:
            found |= _values(one.name, one.metadata[Flag], given)
    return kind(**found)


def _values(name: str, flag: Flag, given: Mapping[str, Any]) -> dict[str, Any]:
    value = given.get(flag.key or name)
    if value is None:
        return {}
    if flag.fields:
        return dict(zip(flag.fields, value, strict=True))
    return {name: tuple(value) if isinstance(value, list) else value}


def _is_given(part: Part, given: Mapping[str, Any]) -> bool:
    """Whether an optional part is described. Of the flags that it needs, all are given or none is."""
    needed = [one for one in flags(part.kind) if one.default is REQUIRED]
    missing = [one.name for one in needed if given.get(one.key) is None]
    if missing and len(missing) < len(needed):
        *names, last = (one.name for one in needed)
        raise InputError(f"{part.what} needs {', '.join(names)} and {last}: give {' and '.join(missing)} as well")
    return not missing


def read_texts(value: Any) -> None:
    """For `__post_init__`: text given for a field is read as on the command line, and numbers have the same range."""
    for one in fields(value):
        own: Flag | None = one.metadata.get(Flag)
        given = getattr(value, one.name)
        if own is not None and own.parse is positive and not (given is None or isinstance(given, str)):
            _require_positive(one.name, given)
        if own is None or own.fields or not isinstance(given, str):
            continue
        if own.choices and given not in own.choices:
            raise InputError(f"{one.name} {given!r} is not known: choose one of {', '.join(own.choices)}")
        object.__setattr__(value, one.name, own.parse(given))


def _require_positive(name: str, given: object) -> None:
    """A number that was given as one has the range of the text."""
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= GREATEST_COUNT:
        raise InputError(f"{name} is {given!r}: give a whole number from 1 to {GREATEST_COUNT:,}")
