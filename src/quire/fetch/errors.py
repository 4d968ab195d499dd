"""Errors of fetching a model."""

from __future__ import annotations

from quire.core.errors import QuireError


class FetchError(QuireError):
    """A download that failed, or that is not what was expected."""
