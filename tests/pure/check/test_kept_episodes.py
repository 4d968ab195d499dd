"""Episodes of the checker in which a promise was once broken, or a law was wrong: each is clean since."""

from __future__ import annotations

import pytest

from quire.check.campaign import Campaign, run_episode

KEPT = {
    22000839: "a lease granted while its records are loaded breaks with them if the load fails",
    4102012323: "where every kind grows, a request waits for room to copy a leased page that ends between two units",
    4107012419: "a booking does not end with its session's lease in a tier whose cache is dropped",
    4116012495: "nor with one that cannot be loaded",
}
"""By seed: what it is about."""


@pytest.mark.story
@pytest.mark.parametrize("seed", KEPT)
def test_an_episode_in_which_a_promise_was_broken_keeps_it_now(seed: int) -> None:
    campaign = Campaign()
    run_episode(campaign, seed)
    assert campaign.failure is None, KEPT[seed]
