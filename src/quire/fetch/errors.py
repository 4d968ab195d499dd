"""What keeps a model from being fetched."""

from __future__ import annotations

from quire.core.errors import QuireError


class FetchError(QuireError):
    """A download that failed, or brought something else than was expected."""
