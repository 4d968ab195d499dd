"""All that can happen to requests, on two ranks, two stages and both: their tokens are those of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from quire.core.request import Request
from quire.engine.engine import Engine
from rank_traffic import ALWAYS, HAPPENS, Seen, campaign_plan, drive, few_requests, happens, options_of, requests
from split_engine import split_engine
from split_models import ALL, config_of_type, ways_of
from tiny_folder import save_folder

WAYS = ((2, 1), (1, 2), (2, 2))


def campaign(
    folder: Path, ranks: int, stages: int, sent: Sequence[Request]
) -> tuple[dict[str, list[int]], set[str], Engine]:
    """The tokens of each request, and what has happened."""
    seen = Seen()
    with split_engine(folder, campaign_plan(folder, ranks, stages), options_of(stages), [seen]) as engine:
        return drive(engine, sent), set(+seen.events), engine


@pytest.mark.parametrize("name", HAPPENS)
def test_ranks_and_stages_generate_what_one_rank_does(name: str, tmp_path: Path) -> None:
    """Greedy and seeded, with a penalty and log-probabilities; prefix hits, drafts, cancellation; preemption, leases,
    compaction and prefixes from host memory. Red if a share of the weights were wrong, a stage moved pages of another,
    or a rank missed a copy; and if one of these things did not happen."""
    folder, sent = save_folder(tmp_path, config_of_type(name)), few_requests()
    expected, happened, _ = campaign(folder, 1, 1, sent)
    assert happened >= happens(name, 1), happened
    for ranks, stages in WAYS:
        found, happened, _ = campaign(folder, ranks, stages, sent)
        assert found == expected, f"{ranks} ranks, {stages} stages"
        assert happened >= happens(name, stages), happened


@pytest.mark.soak
@pytest.mark.parametrize("name", ALL)
def test_every_type_that_can_be_split_generates_what_it_does_on_one_rank(name: str, tmp_path: Path) -> None:
    """The same of each model type, in all ways that docs/splits.md does not refuse."""
    folder, sent = save_folder(tmp_path, config_of_type(name)), requests(12, 8, 30)
    expected, happened, engine = campaign(folder, 1, 1, sent)
    assert happened >= possible(engine), happened
    for ranks, stages in ways_of(name):
        found, happened, engine = campaign(folder, ranks, stages, sent)
        assert found == expected, f"{ranks} ranks, {stages} stages"
        assert happened >= possible(engine), happened


def possible(engine: Engine) -> set[str]:
    """What must happen to requests of this type."""
    scheduler = engine.scheduler
    impossible = {"accepted"} if scheduler.drafts.disabled else set()
    return ALWAYS - impossible - ({"reused"} if scheduler.reuse.index.disabled else set())
