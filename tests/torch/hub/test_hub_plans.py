"""Plans and measurements of a model of the hub need its configuration alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import refused, run_json
from hub_models import in_shards
from quantised_folders import write_pair
from quantised_formats import FORMATS
from quire.bench.random_models import config_of
from quire.cli.main import main
from quire.fetch import hub_headers
from quire.models.catalogue import catalogue_entry
from small_hub import SmallHub, files_of


def test_a_plan_reads_the_configuration_and_the_index_alone(
    hub: SmallHub, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the token, and the same numbers as the folder's plan."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.add("org/tiny", files_of(tiny))
    ours, theirs = (run_json(capsys, name, "--memory", "4GiB") for name in ("org/tiny", str(tiny)))
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


def ledger(capsys: pytest.CaptureFixture[str], model: str) -> dict[str, int]:
    found = run_json(capsys, model, "--memory", "4GiB", "--dtype", "bf16", "--pool", "1MiB")
    return {line["name"]: line["bytes"] for line in found["ranks"][0]["ledger"]}


@pytest.mark.parametrize("sort", ["AWQ", "GPTQ act-order", "fp8 blocks", "NVFP4, ModelOpt", "int8 asymmetric"])
def test_quantised_weights_are_counted_from_the_headers_of_the_hub(
    sort: str, hub: SmallHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In shards, and as the folder's own plan counts them: to the byte. No file of weights is read whole."""
    case = FORMATS[sort]
    folder = write_pair(tmp_path, "llama", case.of_matrices(), case.section).packed
    hub.add("org/packed", in_shards(folder) | {"tokenizer.json": b"{}"})
    assert ledger(capsys, "org/packed") == ledger(capsys, str(folder))
    ranges = [asked for method, path, asked in hub.asked if path.endswith(".safetensors") and method == "GET"]
    assert len(ranges) == 3, "each file once, however often the plan asks"
    assert set(ranges) == {f"bytes=0-{hub_headers.TENSORS_BYTES - 1}"}


def test_a_long_header_is_read_to_its_end(
    hub: SmallHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_headers, "TENSORS_BYTES", 100)
    folder = write_pair(tmp_path, "llama", FORMATS["AWQ"].of_matrices(), FORMATS["AWQ"].section).packed
    hub.add("org/long", files_of(folder) | {"tokenizer.json": b"{}"})
    assert ledger(capsys, "org/long") == ledger(capsys, str(folder))
    assert 100 < hub.weight_bytes() < (folder / "model.safetensors").stat().st_size


def test_a_format_that_only_a_file_beside_the_configuration_names_is_found(
    hub: SmallHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ModelOpt writes hf_quant_config.json."""
    case = FORMATS["fp8 per tensor, ModelOpt"]
    folder = write_pair(tmp_path, "llama", case.of_matrices(), case.section).packed
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    hub.add("org/beside", files_of(folder) | {"tokenizer.json": b"{}"})
    assert ledger(capsys, "org/beside") == ledger(capsys, str(folder))


def test_a_header_that_is_none_is_refused_by_name(
    hub: SmallHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pair(tmp_path, "llama", FORMATS["AWQ"].of_matrices(), FORMATS["AWQ"].section).packed
    whole = files_of(folder) | {"tokenizer.json": b"{}"}
    for data in (b"", b"<html>not here</html>", (1 << 40).to_bytes(8, "little") + b"{}"):
        hub.add("org/bad", whole | {"model.safetensors": data})
        assert "model.safetensors cannot be read as safetensors" in refused(capsys, "plan", "org/bad")
