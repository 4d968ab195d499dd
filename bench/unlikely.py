"""Drops from a prefix index what is kept for a use that is not likely, so that what is left can be measured."""

from __future__ import annotations

import numpy as np

from quire.prefix.forecast import Origin
from quire.prefix.index import PrefixIndex


def drop_unlikely(index: PrefixIndex) -> None:
    """Spares go, and boundaries that chains have passed."""
    for number in list(index.boundaries.groups):
        index.boundaries.drop_group(number)
    for node in [node for node in index.boundaries.tails if index.nodes.origin[node] == Origin.PASSED]:
        if index.nodes.children[node]:
            index.boundaries.drop(node)
        else:
            index.forget(np.array([node]))
