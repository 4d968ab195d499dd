"""The C library through ctypes: which instructions it uses here, its threads, and the structures it reads."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from threading import Lock

from quire.native.compile import LIBRARY

CHOICE = "QUIRE_NATIVE"
"""Environment: `off`, or the name of an instruction set (`AVX2`) instead of the best one."""
OFF = "off"


class Weight(Structure):
    _fields_ = (
        ("tiles", c_void_p), ("bias", c_void_p), ("outputs", c_int64), ("inputs", c_int64), ("group", c_int32),
        ("bits", c_int32), ("zero", c_int32), ("kind", c_int32), ("factor", c_float),
    )  # fmt: skip


class Tokens(Structure):
    _fields_ = (
        ("codes", c_void_p), ("low", c_void_p), ("scales", c_void_p), ("sums", c_void_p), ("starts", c_void_p),
        ("inputs", c_int64),
    )  # fmt: skip


class Reading(Structure):
    _fields_ = (
        ("key_places", c_void_p), ("value_places", c_void_p), ("seen", c_void_p), ("count", c_int64),
        ("new_key", c_int64), ("new_value", c_int64),
    )  # fmt: skip


class Layer(Structure):
    _fields_ = (
        ("queries_keys_values", Weight), ("output", Weight), ("gate_up", Weight), ("down", Weight),
        ("norm_in", c_void_p), ("norm_out", c_void_p), ("norm_heads", c_void_p), ("keys", c_void_p),
        ("values", c_void_p), ("key_step", c_int64), ("value_step", c_int64), ("epsilon_in", c_float),
        ("epsilon_out", c_float), ("epsilon_heads", c_float), ("scale", c_float), ("kind", c_int32),
        ("has_rope", c_int32),
    )  # fmt: skip


class Model(Structure):
    _fields_ = (
        ("layers", POINTER(Layer)), ("norm", c_void_p), ("count", c_int64), ("hidden", c_int64), ("inner", c_int64),
        ("heads", c_int64), ("key_heads", c_int64), ("width", c_int64), ("epsilon", c_float),
    )  # fmt: skip


class Step(Structure):
    _fields_ = (
        ("x", c_void_p), ("queries_keys_values", c_void_p), ("mixed", c_void_p), ("gate_up", c_void_p),
        ("found", c_void_p), ("cosines", c_void_p), ("sines", c_void_p), ("readings", c_void_p),
        ("greatest", c_void_p), ("sums", c_void_p), ("parts", c_void_p), ("rows", c_int64), ("pieces", c_int64),
        ("tokens", Tokens),
    )  # fmt: skip


SIZES = ((1, Weight), (3, Tokens), (5, Reading), (7, Layer), (11, Model), (13, Step))
"""As `quire_size` adds them up."""


@dataclass(frozen=True, slots=True, eq=False)
class Native:
    """The library with one set of instructions."""

    library: ctypes.CDLL
    ops: int
    name: str

    def team(self, threads: int) -> int:
        """Threads of this process that wait for work: one team of each size that was asked for, for good."""
        key = os.getpid(), threads
        found = _teams.get(key)
        if found is None:
            with _lock:
                found = _teams.get(key) or _teams.setdefault(key, self.library.quire_team(threads))
        return found


_teams: dict[tuple[int, int], int] = {}
"""By process, for a child that was forked has none of its parent's threads, and size."""
_lock = Lock()


def native() -> Native | None:
    """The library with the best instructions of this processor, or those that the environment names."""
    return _native(os.environ.get(CHOICE, ""))


def why_not() -> str:
    """Why there is none."""
    if os.environ.get(CHOICE) == OFF:
        return f"{CHOICE} is {OFF}"
    return "" if native() else _problem()


def versions() -> list[Native]:
    """All that run here, the best first."""
    library = _library()
    if not isinstance(library, ctypes.CDLL):
        return []
    found = []
    for number in range(16):
        ops = library.quire_ops(number)
        if ops and library.quire_runs(ops):
            found.append(Native(library, ops, library.quire_name(ops).decode()))
    return found


@cache
def _native(choice: str) -> Native | None:
    if choice == OFF:
        return None
    return next((version for version in versions() if choice in ("", version.name)), None)


def _problem() -> str:
    found = _library()
    return found if isinstance(found, str) else f"it has no version {os.environ.get(CHOICE)!r} for this processor"


@cache
def _library() -> ctypes.CDLL | str:
    if not LIBRARY.exists():
        return "it was not compiled when Quire was installed: no C compiler was found, or it failed"
    try:
        library = _declared(ctypes.CDLL(str(LIBRARY)))
    except (OSError, AttributeError) as error:
        return f"{LIBRARY.name} cannot be loaded: {error}"
    if library.quire_size() != sum(factor * ctypes.sizeof(one) for factor, one in SIZES):
        return f"{LIBRARY.name} was compiled from other sources: run python -m quire.native.compile"
    return library


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    numbers = {"quire_ops": c_int, "quire_team": c_int}
    for name, given in numbers.items():
        getattr(library, name).argtypes, getattr(library, name).restype = [given], c_void_p
    library.quire_size.argtypes, library.quire_size.restype = [], c_int64
    library.quire_name.argtypes, library.quire_name.restype = [c_void_p], c_char_p
    library.quire_runs.argtypes, library.quire_runs.restype = [c_void_p], c_int
    library.quire_multiply.argtypes = [
        *[c_void_p] * 2, POINTER(Weight), POINTER(Tokens), *[c_void_p] * 2, c_int64, *[c_void_p] * 2, c_int64,
    ]  # fmt: skip
    library.quire_layers.argtypes = [*[c_void_p] * 2, POINTER(Model), POINTER(Step), c_int64, c_int64]
    library.quire_multiply.restype = library.quire_layers.restype = None
    return library
