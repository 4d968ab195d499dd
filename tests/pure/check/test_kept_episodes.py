"""Episodes of the checker in which a promise was once broken, or a law was wrong: each is clean since."""

from __future__ import annotations

import pytest

from examples import rest_in_soak
from quire.check.campaign import Campaign, run_episode

KEPT = {
    22000839: "a lease granted while its records are loaded breaks with them if the load fails",
    4101012320: "a lease of a cancelled request, asked for again in the step in which its time is over, has ended",
    4102012323: "where every kind grows, a request waits for room to copy a leased page that ends between two units",
    4102014491: "a lease in a tier whose time is over when a step fails ends with its turn, not with another's",
    4107012419: "a booking does not end with its session's lease in a tier whose cache is dropped",
    4116012495: "nor with one that cannot be loaded",
    4109012521: "a branch may evict units of its own prompt for the state that it copies",
    4106012345: "a chunk of warm work that finds less than before, as its load failed, is computed in several steps",
    4110012639: "a boundary is kept at a point that lies before units that are kept already",
    4120012598: "what a waiting request would reuse is looked up again before it is passed over for lack of memory",
    4202012714: "a request that found all of its lease keeps those pages if there is no room to load more",
    4204012961: "a request that has its prompt's log-probabilities continues a lease after a preemption",
    4206012738: "a lease that is asked for again when its time is over has ended, and may have fewer tokens then",
    4210012889: "a lease of a request that was cancelled between two steps counts from the step before",
    5102015420: "a request whose lease in a tier is in the pool too waits for no load of it",
    5201015636: "a chunk of warm work never has more tokens than a step",
    6001018552: "a page that is leased with a whole unit and with an end inside it is shared once",
}
"""By seed: what it is about."""
LONG = {4110012639}
"""These have many steps, and are in `make soak`."""


@pytest.mark.story
@pytest.mark.parametrize("seed", rest_in_soak(KEPT, KEPT.keys() - LONG))
def test_an_episode_in_which_a_promise_was_broken_keeps_it_now(seed: int) -> None:
    campaign = Campaign()
    run_episode(campaign, seed)
    assert campaign.failure is None, KEPT[seed]
