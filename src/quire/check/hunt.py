"""Looks for a planted bug: an episode finds it if it breaks with the bug, and is clean without it."""

from __future__ import annotations

from quire.check.campaign import Campaign, episode_seed, run_episode
from quire.check.mutations import planted


def finds(name: str, seed: int) -> bool:
    """Whether this episode finds the bug."""
    return _breaks(seed, name) and not _breaks(seed)


def hunt(name: str, steps: int, seed: int) -> Campaign:
    """Episodes of a seed until one finds the bug, or for at least `steps` steps."""
    campaign = Campaign()
    while campaign.failure is None and campaign.coverage.steps < steps:
        with planted(name):
            run_episode(campaign, episode_seed(seed, campaign.episodes))
        if campaign.failure is not None and _breaks(campaign.failure.episode_seed):
            campaign.failure = None  # of something else
    return campaign


def _breaks(seed: int, name: str | None = None) -> bool:
    campaign = Campaign()
    if name is None:
        run_episode(campaign, seed)
    else:
        with planted(name):
            run_episode(campaign, seed)
    return campaign.failure is not None
