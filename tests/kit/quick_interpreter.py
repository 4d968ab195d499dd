"""Triton's interpreter without work that it does again and again: about a quarter of the time of interpreted kernels.

It replaces the functions of `triton.language` by its own at each launch, and again at each call of a device function
within a launch, where all of them are replaced already. And it looks up the numpy type of each value in a table that
it makes anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


class _NoScope:
    """What is patched within a launch lasts as long as the launch."""

    def restore(self) -> None:
        pass


class _Launch:
    """Which modules are patched for the launch that runs."""

    def __init__(self) -> None:
        self._patch = interpreter._patch_lang
        self._patched: set[ModuleType] | None = None
        """None: no launch runs."""

    def patch(self, fn: Any) -> Any:
        modules = _modules(fn)
        if self._patched is None:
            self._patched = set(modules)
            scope = self._patch(fn)
            scope.restore = partial(self._end, scope.restore)
            return scope
        if not self._patched.issuperset(modules):
            self._patched |= modules
            self._patch(fn)  # not undone, as without us
        return _NoScope()

    def _end(self, restore: Callable[[], None]) -> None:
        self._patched = None
        restore()


@cache
def _modules(fn: Any) -> frozenset[ModuleType]:
    """The modules of the language that a function uses."""
    return frozenset(one for one in fn.__globals__.values() if one is tl or one is tl.core)


def _quick_types(numpy_type: Callable[[Any], Any]) -> Callable[[Any], Any]:
    remembered = cache(numpy_type)

    def quick(type_: Any) -> Any:
        scalar = type_.scalar
        return numpy_type(scalar) if isinstance(scalar, tl.pointer_type) else remembered(scalar)

    return quick


def install() -> None:
    """Once for each process; versions of Triton that patch otherwise are left as they are."""
    is_known = hasattr(interpreter, "_LangPatchScope") and hasattr(interpreter, "_get_np_dtype")
    if not is_known or isinstance(getattr(interpreter._patch_lang, "__self__", None), _Launch):
        return
    interpreter._patch_lang = _Launch().patch
    interpreter._get_np_dtype = _quick_types(interpreter._get_np_dtype)
