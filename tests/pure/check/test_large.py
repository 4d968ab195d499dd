"""Large systems come early in every campaign, and reach what small ones never do."""

from __future__ import annotations

import pytest

from quire.cache.nodes import FIRST_NODES, Nodes
from quire.cache.tables import FEW_ROWS, Table
from quire.check.campaign import episode_seed
from quire.check.coverage import Coverage
from quire.check.episode import Episode
from quire.check.large import EVERY, OF_REUSE, is_large
from quire.scheduler.rows import Rows

FIRST_OUTPUTS = Rows(1).outputs.shape[1]
LARGE = 32 * 25 + 31
"""A large episode with two kinds that takes a second."""


@pytest.mark.parametrize("seed", [0, 1, 2, 7, 1000])
def test_every_campaign_has_a_large_system_among_its_first_ones(seed: int) -> None:
    """An episode has about a hundred steps: the first one comes within a few thousand, and six have every kind."""
    large = [number for number in range(6 * EVERY) if is_large(episode_seed(seed, number))]
    assert large[0] < EVERY
    assert len(large) == len(OF_REUSE)
    assert len({episode_seed(seed, number) // EVERY % len(OF_REUSE) for number in large}) == len(OF_REUSE)


def test_a_large_system_reaches_what_small_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that get pages together, rows that give them back together, outputs and nodes beyond their first room."""
    together = {"append": 0, "cut": 0}
    append, cut, widen, widened = Table.append, Table.cut, Nodes.widen, []

    def counted_append(self: Table, rows: object, *others: object) -> None:
        together["append"] += len(rows) > FEW_ROWS  # type: ignore[arg-type]
        append(self, rows, *others)  # type: ignore[arg-type]

    def counted_cut(self: Table, rows: object, settled: object) -> object:
        pages = cut(self, rows, settled)  # type: ignore[arg-type]
        together["cut"] += pages is not None and len(pages) > FEW_ROWS
        return pages

    monkeypatch.setattr(Table, "append", counted_append)
    monkeypatch.setattr(Table, "cut", counted_cut)
    monkeypatch.setattr(Nodes, "widen", lambda self: (widen(self), widened.append(self.room)))
    episode = Episode(LARGE, Coverage())
    assert episode.system.is_large
    episode.run()
    assert min(together.values()) > 0, together
    assert widened[-1] >= 4 * FIRST_NODES
    assert episode.scheduler.rows.outputs.shape[1] > FIRST_OUTPUTS
