"""Options that real configurations use yield the tokens they should, whatever happens to requests."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from command import run_text
from examples import rest_in_soak
from quire.sweep import Case, examine, sweep
from quire.sweep.options import CASES
from quire.worker.mixers.temperature import Temperature

torch.set_num_threads(1)
QUICK = [case for case in CASES if case.is_quick]
KEPT = [
    case
    for case in QUICK
    if case.name
    in {
        *("phi3: longrope, long", "deepseek_v3: yarn with mscale over all", "llama4_text: scaled every 7 tokens"),
        *("mamba2: two groups", "qwen2_moe: 4 of 4 experts", "mistral: window of 2", "gemma2: low soft caps"),
    }
]
"""One for each part of the options: ropes, scales, states, experts, windows and heads."""
LLAMA4 = next(case for case in QUICK if case.name == "llama4_text: scaled every 7 tokens")


@pytest.mark.parametrize("case", rest_in_soak(QUICK, KEPT), ids=lambda case: case.name)
def test_a_quick_case_passes(case: Case) -> None:
    """`quire models --check --options` runs all of them. A pass needs prefix hits, accepted drafts, preemptions and
    loads from host memory, where the model's memory allows them."""
    (finding,) = sweep([case])
    assert (finding.verdict, finding.reason) == ("pass", "")
    assert finding.happened["hit tokens"] > 0
    assert finding.happened["accepted drafts"] > 0
    assert finding.happened["tokens from host"] > 0
    assert finding.happened["preemptions"] > 0 or case.type == "mamba2", "rows of states alone never grow"


def test_cases_have_names_of_their_own_and_options_that_their_types_know() -> None:
    """A misspelt option would be a case of the defaults."""
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 150
    assert len({case.type for case in CASES}) >= 60
    assert 12 <= len(QUICK) <= 18
    assert len(KEPT) == 7
    for case in CASES:
        config = case.config
        known = {*config.to_dict(), *config.attribute_map, *type(config).__annotations__}
        assert not set(case.options) - known, case.name


def test_a_case_in_which_nothing_happened_does_not_pass() -> None:
    """One output leaves nothing to guess, and nobody grows."""
    finding = examine(replace(LLAMA4, outputs=1, prompts=(5,)))
    assert finding.verdict == "fails"
    assert finding.reason.startswith("not checked: there were no ")
    assert "accepted drafts" in finding.reason


def test_a_wrong_token_fails_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here queries are not scaled by their positions: the first one that should be is at position 6."""
    monkeypatch.setattr("quire.sweep.findings.check_model", lambda _model, _stage: None)
    monkeypatch.setattr(Temperature, "scale", lambda _self, query, _positions: query)
    finding = examine(LLAMA4)
    assert (finding.verdict, finding.reason) == ("fails", "cold: token 4 of 30 after a prompt of 3 differs")


def test_the_command_checks_the_options_of_one_type(capsys: pytest.CaptureFixture[str]) -> None:
    out, error = run_text(capsys, "models", "--check", "--options", "--only", "nanochat", "--json")
    (finding,) = json.loads(out)
    assert (finding["type"], finding["options"], finding["verdict"]) == ("nanochat", "low soft cap", "pass")
    assert error == "1/1 nanochat: low soft cap: pass\n"
    _, error = run_text(capsys, "models", "--options", code=2)
    assert "--options chooses what is checked: add --check" in error
    _, error = run_text(capsys, "models", "--check", "--options", "--only", "rembert", code=2)
    assert "nothing is checked of rembert beyond its defaults" in error
