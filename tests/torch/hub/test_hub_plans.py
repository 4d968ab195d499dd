"""Plans and measurements of a model of the hub need its configuration alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import refused, run_json
from quire.bench.random_models import config_of
from quire.cli.main import main
from quire.models.catalogue import catalogue_entry
from small_hub import SmallHub, files_of


def test_a_plan_reads_the_configuration_and_the_index_alone(
    hub: SmallHub, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the token, and the same numbers as the folder's plan."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.add("org/tiny", files_of(tiny))
    ours, theirs = (run_json(capsys, name, "--memory", "1GiB") for name in ("org/tiny", str(tiny)))
    assert (ours["model"], theirs["model"]) == ("org/tiny", tiny.name)
    assert ours["ranks"] == theirs["ranks"]
    assert ours["sheets"] == theirs["sheets"]
    assert set(hub.sent) == {"config.json"}
    assert set(hub.tokens) == {"Bearer secret"}


def test_the_hub_is_not_asked_for_a_shape_that_the_catalogue_has(
    hub: SmallHub, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless a revision is named. A note of the plan says so."""
    config = dict(catalogue_entry("phi-4").config) | {"num_hidden_layers": 3}
    files = {"config.json": json.dumps(config).encode(), "tokenizer.json": b"{}", "model.safetensors": b""}
    hub.add("microsoft/phi-4", files)
    assert main(["plan", "microsoft/phi-4", "--memory", "80GiB"]) == 0
    assert "microsoft/phi-4: as the catalogue has it, the hub was not asked" in capsys.readouterr().out
    assert hub.asked == []
    assert main(["plan", "microsoft/phi-4@main", "--memory", "80GiB"]) == 0
    assert "microsoft/phi-4 (phi3)" in capsys.readouterr().out
    assert hub.asked != []


def test_a_configuration_that_is_none_is_refused(hub: SmallHub, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for config, words in ((b"<html>", "config.json is not JSON"), (b"[]", "config.json is not an object of fields")):
        hub.add("org/page", {**files_of(tiny), "config.json": config})
        assert words in refused(capsys, "plan", "org/page")


def test_a_bench_takes_its_shape_from_the_hub(hub: SmallHub, tiny: Path) -> None:
    """Random weights: none is downloaded."""
    hub.add("org/tiny", files_of(tiny))
    config = config_of("org/tiny", layers=1)
    assert (config.model_type, config.num_hidden_layers) == ("llama", 1)
    assert set(hub.sent) == {"config.json"}
