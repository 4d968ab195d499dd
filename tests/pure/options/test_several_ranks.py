"""What several ranks do not run is refused by name, before anything is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.build.limits import require_ranks
from quire.core.errors import InputError
from quire.options.ranks import RankOptions
from quire.options.run import RunOptions
from quire.options.tiers import Tiers

CPU = {"device": "cpu"}
REFUSED: list[tuple[str, dict[str, Any], tuple[int, int]]] = [
    ("--draft-model", {**CPU, "draft_model": "small"}, (2, 1)),
    ("--draft-model", {**CPU, "draft_model": "small"}, (1, 2)),
    ("--deterministic", {"device": "cuda", "deterministic": True}, (2, 1)),
    ("--disk", {**CPU, "tiers": Tiers(disk=Path("cache"))}, (1, 2)),
    ("--disk", {"device": "cuda", "tiers": Tiers(disk=Path("cache"))}, (2, 1)),
    ("--remote", {**CPU, "tiers": Tiers(remote="redis://host")}, (1, 2)),
    ("--connector", {**CPU, "tiers": Tiers(connectors=("a:b",))}, (2, 1)),
    ("--host-memory", {"device": "cuda", "tiers": Tiers(host_bytes=1 << 20)}, (2, 1)),
    ("--host-memory", {**CPU, "tiers": Tiers(host_bytes=1 << 20)}, (1, 2)),
]


@pytest.mark.parametrize(("flag", "options", "ranks"), REFUSED)
def test_an_option_that_several_ranks_do_not_run_is_named(
    flag: str, options: dict[str, Any], ranks: tuple[int, int]
) -> None:
    """With what to leave out; on one rank it runs."""
    with pytest.raises(InputError, match=f"does not run on 2 ranks yet: leave {flag} out, or run the model on one$"):
        require_ranks(*ranks, RunOptions(**options))
    require_ranks(1, 1, RunOptions(**options))


def test_host_memory_on_cpus_and_drafts_from_earlier_tokens_run_on_ranks() -> None:
    require_ranks(4, 1, RunOptions(device="cpu", draft="suffix", tiers=Tiers(host_bytes=1 << 20)))
    require_ranks(2, 1, RunOptions(device="cpu", tiers=Tiers(disk=Path("cache"))))
    require_ranks(2, 2, RunOptions(device="cpu", draft="ngram"))


def test_a_start_takes_some_time() -> None:
    with pytest.raises(InputError, match="--start-seconds is 0: give more than 0"):
        RankOptions(start_seconds=0)
    with pytest.raises(InputError, match="launch 'spark' is not known: choose one of local, environment, ray"):
        RankOptions(launch="spark")
