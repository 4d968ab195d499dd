"""Errors that Quire raises on purpose. docs/errors.md draws the whole tree; this file has

    QuireError                  exit code
    ├── InputError                  2      what was asked cannot be understood
    │   ├── ModelError              2      a model, or a field of its configuration
    │   ├── PlanError               2      a setting: sizes, splits, pages, layouts
    │   │   └── PoolTooLarge        3      a pool that was fixed beyond the memory: too large, like DoesNotFit
    │   ├── PlanFileError           2      a saved plan: damaged, not a plan, or of another version
    │   ├── MissingPackage          2      a package that is not installed
    │   └── NeverFits               3      a request that could not run even alone: too large, like DoesNotFit
    ├── DoesNotFit                  3      understood, and too large for the available memory
    └── QueueFull                   1      too many requests wait already

Each message is one line: what, the numbers, and the smallest change that helps.
"""

from __future__ import annotations


class QuireError(Exception):
    """The root: catch this to catch everything Quire raises on purpose."""

    exit_code = 1


class InputError(QuireError):
    """Something that a user gave cannot be used; the message says what to give instead."""

    exit_code = 2


class ModelError(InputError):
    """A model that is unknown, or a field of its configuration that is missing or not understood."""


class PlanError(InputError):
    """A setting that no memory could satisfy: the numbers and the option to change are in the message."""


class PoolTooLarge(PlanError):
    """A pool that was requested and is larger than the memory left for it."""

    exit_code = 3


class PlanFileError(InputError):
    """A plan file that is not what it says it is."""


class MissingPackage(InputError, ImportError):
    """An optional package is not installed: the message names the extra. It is also an ImportError."""


class DoesNotFit(QuireError):
    """The plan is sound but the memory is too small for it."""

    exit_code = 3


class NeverFits(InputError):
    """A request that could not run alone in the empty pool: it is refused at once and never queued."""

    exit_code = 3


class QueueFull(QuireError):
    """The bounded queue of waiting requests is full: try again later."""
