"""The checker checked: it is quiet where nothing is wrong, and finds every bug that is planted."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from command import refused, run_text
from examples import rest_in_soak
from quire.check.campaign import Campaign, run_campaign, run_episode
from quire.check.coverage import STEPS_PER_FLOOR, Coverage, Fault, Mechanism, is_possible
from quire.check.definitions import Violation
from quire.check.hunt import finds, hunt
from quire.check.mutations import MUTATIONS, planted
from quire.check.small import SHORT
from quire.cli.main import build_parser
from quire.core.rules import Policy
from quire.kinds import KINDS
from quire.scheduler.scheduler import Scheduler

DOCS = Path(__file__).parents[3] / "docs" / "check.md"
FOUND: dict[str, int] = json.loads((Path(__file__).parent / "found.json").read_text())
"""By planted bug: an episode that finds it."""


def test_a_short_run_keeps_every_promise() -> None:
    campaign = run_campaign(3_000, seed=1)
    assert campaign.failure is None
    assert campaign.coverage.steps >= 3_000
    assert campaign.verdict().startswith("clean: 3,")


def broken_books(_scheduler: Scheduler) -> None:
    raise Violation("the books never balance")


@pytest.mark.parametrize("name", rest_in_soak(MUTATIONS, list(MUTATIONS)[::4]))
def test_every_planted_bug_is_found(name: str) -> None:
    """Within 20,000 steps: first in the episode that found it before (`quire check --mutate all --json`), then, should
    that go another way by now, in a campaign. `make soak` hunts for all of them from scratch."""
    assert finds(name, FOUND[name]) or hunt(name, 20_000, seed=2).failure is not None


def test_an_episode_that_breaks_without_a_planted_bug_does_not_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever broke would be reported for every bug that is planted."""
    monkeypatch.setattr("quire.check.episode.check_books", broken_books)
    assert not finds("settle-missed", FOUND["settle-missed"])
    assert hunt("settle-missed", 30, seed=2).failure is None


def test_the_episodes_that_find_planted_bugs_are_clean_without_them() -> None:
    """Else nothing would have been found. A few of them, for they take as long as they take."""
    for seed in sorted({*FOUND.values()})[:3]:
        campaign = Campaign()
        run_episode(campaign, seed)
        assert campaign.failure is None


def test_an_episode_is_stored_for_every_planted_bug() -> None:
    assert set(FOUND) == set(MUTATIONS)


def test_a_planted_bug_is_gone_afterwards() -> None:
    for name, one in MUTATIONS.items():
        original = getattr(one.owner, one.name)
        with planted(name):
            assert getattr(one.owner, one.name) is not original
        assert getattr(one.owner, one.name) is original


def test_a_seed_repeats_its_violation() -> None:
    """The same words at the same step, from the episode's seed alone."""
    with planted("scope-left-out"):
        first = run_campaign(20_000, seed=2).failure
        assert first is not None
        again = Campaign()
        run_episode(again, first.episode_seed)
    assert again.failure == first


def test_equal_seeds_take_equal_steps() -> None:
    one, other = run_campaign(600, seed=5), run_campaign(600, seed=5)
    assert one.coverage.steps == other.coverage.steps
    assert one.coverage.faults == other.coverage.faults
    assert one.coverage.mechanisms == other.coverage.mechanisms


def full_coverage(steps: int) -> Coverage:
    coverage = Coverage()
    coverage.steps = steps
    floor = steps // STEPS_PER_FLOOR
    for kind in KINDS:
        for policy in Policy:
            for fault in Fault:
                coverage.faults[kind, policy, fault] = floor if is_possible(kind, fault) else 0
        for mechanism in Mechanism:
            coverage.mechanisms[kind, mechanism] = floor if is_possible(kind, mechanism) else 0
    return coverage


def test_what_was_exercised_too_seldom_fails_a_long_run() -> None:
    coverage = full_coverage(3 * STEPS_PER_FLOOR)
    assert Campaign(coverage).is_clean
    coverage.faults["window", Policy.FAIR, Fault.PIN] -= 1
    coverage.mechanisms["state", Mechanism.CHECKPOINT] = 0
    campaign = Campaign(coverage)
    assert not campaign.is_clean
    assert "fair, pin with window (2 of 3)" in campaign.verdict()
    assert "checkpoint with state (0 of 3)" in campaign.verdict()


def test_the_command_ends_with_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_text(capsys, "check", "--steps", "300", "--seed", "3")
    assert re.fullmatch(r"clean: \d+ steps, \d+ episodes, every promise kept", out.splitlines()[-1])
    assert out.count("\n") == 1
    assert err == ""
    counted, _ = run_text(capsys, "check", "--steps", "300", "--seed", "3", "--counts")
    assert "priority, abort" in counted
    assert counted.endswith(out)


def test_the_command_says_how_to_repeat_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_text(capsys, "check", "--steps", "300", "--mutate", "settle-missed", code=1)
    command, verdict = out.splitlines()[-2].split(), out.splitlines()[-1]
    assert command[0] == "quire"
    assert verdict.startswith("violation: ")
    again, _ = run_text(capsys, *command[1:], code=1)
    assert verdict.split(" (found")[0] in again


def test_a_planted_bug_that_nothing_meets_is_said_to_survive(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_text(capsys, "check", "--steps", "1", "--mutate", "pinned-page-moved")
    assert out.splitlines()[-1].startswith("survived: pinned-page-moved was not found in")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_planted_bug_is_there_when_every_schedule_is_tried(
    processes: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.check.small.SYSTEMS", SHORT[:1])
    asked = ("check", "--exhaustive", "--processes", processes, "--seconds", "60")
    out, _ = run_text(capsys, *asked, "--mutate", "hold-counted-twice", code=1)
    assert out.splitlines()[-1].startswith("violation: ")


def test_the_json_has_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_text(capsys, "check", "--steps", "200", "--json")
    data = json.loads(out)
    assert data["steps"] >= 200
    assert data["violation"] is None
    assert set(data["exercised"]["hit"]) == set(KINDS)


def test_all_planted_bugs_are_hunted_from_scratch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not found in time is said to survive, and the command fails."""
    few = {name: MUTATIONS[name] for name in ("settle-missed", "newcomers-without-end")}
    monkeypatch.setattr("quire.check.mutations.MUTATIONS", few)
    out, _ = run_text(capsys, "check", "--mutate", "all", "--steps", "30", "--seed", "2", code=1)
    assert re.search(r"^settle-missed +\d+ steps  episode \d+$", out, re.MULTILINE)
    assert out.splitlines()[-1] == "survived: newcomers-without-end"
    few.pop("newcomers-without-end")
    out, _ = run_text(capsys, "check", "--mutate", "all", "--steps", "30", "--seed", "2", "--json")
    assert list(json.loads(out)) == ["settle-missed"]


def test_mistakes_on_the_command_line_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--mutate list names all" in refused(capsys, "check", "--mutate", "nonsense")
    assert "--mutate all looks" in refused(capsys, "check", "--mutate", "all", "--exhaustive")
    assert "give at least 1" in refused(capsys, "check", "--steps", "0")
    assert "give at least 1" in refused(capsys, "check", "--exhaustive", "--processes", "0")
    assert "--seconds 0 checks nothing" in refused(capsys, "check", "--exhaustive", "--seconds", "0")


@pytest.mark.parametrize(
    "given",
    ["--exhaustive --steps 5", "--exhaustive --seed 0", "--exhaustive --episode-seed 3", "--episode-seed 0 --seed 1"],
)
def test_an_option_that_would_change_nothing_is_refused_by_name(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, unheard = (word for word in given.split() if word.startswith("--"))
    assert f"{unheard} changes nothing with {first}" in refused(capsys, "check", *given.split())


@pytest.mark.parametrize("option", ["--seconds", "--processes"])
def test_an_option_of_the_exploration_is_refused_without_it(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{option} goes with --exhaustive" in refused(capsys, "check", option, "2")


def test_the_docs_list_every_option_and_every_mutation() -> None:
    text = DOCS.read_text()
    commands = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    options = {name for action in commands.choices["check"]._actions for name in action.option_strings}
    assert not {option for option in options - {"-h", "--help"} if f"`{option}" not in text}
    rows = dict(re.findall(r"^\| `([a-z][a-z-]+)` \| (.+?) \|$", text, re.MULTILINE))
    assert rows == {name: one.description for name, one in MUTATIONS.items()}
