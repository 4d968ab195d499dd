"""Large systems come early in every campaign, and reach what small ones never do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from quire.cache.tables import FEW_ROWS, Table
from quire.check.campaign import episode_seed
from quire.check.coverage import Coverage
from quire.check.episode import Episode
from quire.check.large import EVERY, OF_REUSE, is_large
from quire.prefix.nodes import Nodes
from quire.scheduler.rows import Rows

FIRST_OUTPUTS = Rows(1).outputs.shape[1]


@pytest.mark.parametrize("seed", [0, 1, 2, 7, 1000])
def test_every_campaign_has_a_large_system_among_its_first_ones(seed: int) -> None:
    """An episode has about a hundred steps: the first comes within a few thousand, and each kind has a turn."""
    large = [number for number in range(len(OF_REUSE) * EVERY) if is_large(episode_seed(seed, number))]
    assert large[0] < EVERY
    assert len(large) == len(OF_REUSE)
    assert len({episode_seed(seed, number) // EVERY % len(OF_REUSE) for number in large}) == len(OF_REUSE)


def test_large_systems_reach_what_small_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that get pages together, rows that give them back together, outputs and nodes beyond their first room: all
    within the large episodes of a campaign."""
    reached: Counter[str] = Counter()
    append, cut, widen = Table.append, Table.cut, Nodes.widen

    def counted_append(self: Table, rows: Any, *others: Any) -> None:
        reached["rows that get pages"] += len(rows) > FEW_ROWS
        append(self, rows, *others)

    def counted_cut(self: Table, rows: Any, settled: Any) -> Any:
        reached["rows that give pages back"] += len(rows) > FEW_ROWS
        return cut(self, rows, settled)

    def counted_widen(self: Nodes) -> None:
        reached["nodes"] += 1
        widen(self)

    monkeypatch.setattr(Table, "append", counted_append)
    monkeypatch.setattr(Table, "cut", counted_cut)
    monkeypatch.setattr(Nodes, "widen", counted_widen)
    for number in range(len(OF_REUSE)):
        episode = Episode(EVERY * number + EVERY - 1, Coverage())
        assert episode.system.is_large
        episode.run()
        episode.close()
        reached["outputs"] += episode.scheduler.rows.outputs.shape[1] > FIRST_OUTPUTS
        if len(+reached) == 4:
            return
    raise AssertionError(f"only {dict(+reached)}")
