"""Suggests the known name that was probably meant by an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NEAR = 0.7
"""Least similarity, 1 being the same word: `prot` is near enough to `port`, `foo` is not to `pool`."""


def near_to(word: str, known: Iterable[str]) -> str:
    """A suggestion to end a message with; empty if no name is near. Leading dashes do not count."""
    names = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(word.lstrip("-"), names, 1, NEAR)
    return f": did you mean {names[near[0]]}?" if near else ""
