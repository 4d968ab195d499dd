"""What a planted bug is: a function, or a number, of the engine, its memory or the bound is replaced for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Original = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Mutation:
    description: str
    owner: object
    name: str
    """Of the function or number that is replaced."""
    make: Callable[[Any], Any]
    """From the right one to the wrong one."""


@contextmanager
def replaced(owner: object, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def nothing(original: Original) -> Original:
    """Does nothing instead."""
    del original
    return lambda *_arguments, **_options: None


def always(value: object) -> Callable[[Any], Any]:
    """A function that returns this, whatever it is asked."""
    return lambda _original: lambda *_arguments, **_options: value


def number(value: float) -> Callable[[Any], Any]:
    """Another number."""
    return lambda _original: value
