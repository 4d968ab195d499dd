"""Episode after episode until enough steps were taken: clean, or the first violation with the seed that repeats it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from quire.check.coverage import Coverage
from quire.check.episode import Episode

_LOG = logging.getLogger("quire.tiers")


@dataclass(frozen=True, slots=True)
class Failure:
    what: str
    episode_seed: int
    step: int
    """Of its episode."""


@dataclass(slots=True)
class Campaign:
    """What was done so far, and what was found."""

    coverage: Coverage = field(default_factory=Coverage)
    episodes: int = 0
    failure: Failure | None = None

    @property
    def is_clean(self) -> bool:
        return self.failure is None and not self.coverage.not_exercised()

    def verdict(self) -> str:
        steps = f"{self.coverage.steps:,} steps"
        if self.failure is not None:
            return f"violation: {self.failure.what} (found after {steps})"
        short = self.coverage.not_exercised()
        if short:
            more = f" and {len(short) - 5} more" if len(short) > 5 else ""
            missing = f"{', '.join(short[:5])}{more}"
            return f"not exercised in {steps}: {missing}; no promise was broken: take more --steps or another --seed"
        return f"clean: {steps}, {self.episodes:,} episodes, every promise kept"


def episode_seed(seed: int, episode: int) -> int:
    """Distinct for all episodes of all seeds that are likely to be tried."""
    return seed * 1_000_003 + episode


def run_campaign(steps: int, seed: int, progress: Callable[[Campaign], None] | None = None) -> Campaign:
    """At least `steps` steps, in whole episodes, or until something breaks; and up to half as many again, as long
    as something that can happen did not happen often enough."""
    campaign = Campaign()
    coverage = campaign.coverage
    while campaign.failure is None and (
        coverage.steps < steps or (coverage.steps < 3 * steps // 2 and coverage.not_exercised())
    ):
        run_episode(campaign, episode_seed(seed, campaign.episodes))
        if progress is not None:
            progress(campaign)
    return campaign


def run_episode(campaign: Campaign, seed: int) -> None:
    campaign.episodes += 1
    episode = None
    with _quiet():
        try:
            episode = Episode(seed, campaign.coverage)
            episode.run()
        except Exception as error:  # whatever breaks is a finding, assertions and numpy's complaints included
            what = f"{type(error).__name__}: {error}" if str(error) else _where(error)
            campaign.failure = Failure(what, seed, episode.now if episode else 0)
        finally:
            if episode is not None:
                episode.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Tiers that fail on purpose say so in the log, again and again."""
    level = _LOG.level
    _LOG.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        _LOG.setLevel(level)


def _where(error: Exception) -> str:
    """For errors without words: the innermost line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    line = f" in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}{line}"
