"""Errors of fetching a model."""

from __future__ import annotations

from quire.core.errors import InputError, QuireError


class FetchError(QuireError):
    """A download that failed, or that is not what was expected."""


class HubError(InputError):
    """A model that the hub does not give, or that is refused as it lies there: the message says what to do."""
