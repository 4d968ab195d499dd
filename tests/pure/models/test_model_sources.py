"""Where a model may come from, in order: a file or folder, the catalogue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_configs import llama

from quire.core.errors import ModelError
from quire.models.catalogue import catalogue_entry
from quire.models.read import read_config, read_model
from quire.models.shapefile import shape_to_json


def test_a_folder_is_named_after_itself_and_a_file_after_its_stem(tmp_path: Path) -> None:
    """`config.json` inside a folder, or any file."""
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(llama()), encoding="utf-8")
    (tmp_path / "Other-1.5.json").write_text(json.dumps(llama()), encoding="utf-8")
    assert read_model(str(folder)).name == "My-Model"
    assert read_model(str(folder / "config.json")).name == "My-Model"
    assert read_model(str(tmp_path / "Other-1.5.json")).name == "Other-1.5"


def test_a_shape_file_is_told_apart_by_its_key(tmp_path: Path) -> None:
    """`quire_shape`."""
    shape = read_config(llama(), "tiny")
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(shape_to_json(shape)), encoding="utf-8")
    assert read_model(str(file)) == shape


def test_a_file_comes_before_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies here is what is meant."""
    monkeypatch.chdir(tmp_path)
    Path("phi-4").write_text(json.dumps(llama()), encoding="utf-8")
    assert len(read_model("phi-4").layers) == 2
    assert len(read_model("PHI-4").layers) == 40


@pytest.mark.parametrize("name", ["llama-3.1-8b", "Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "llama_3.1_8b"])
def test_catalogue_names_are_found_in_any_dress(name: str) -> None:
    """Any case, `_` for `-`, with an organisation, by alias."""
    assert read_model(name).name == "meta-llama-3.1-8b"


def test_an_unknown_name_gets_near_misses_and_the_command_that_lists_all() -> None:
    """At most three."""
    with pytest.raises(ModelError) as caught:
        read_model("lama-3.1-8b")
    assert "llama-3.1-8b" in str(caught.value)
    assert "`quire models`" in str(caught.value)
    assert str(caught.value).count(" or ") <= 3
    with pytest.raises(ModelError, match="`quire models`"):
        read_model("")


@pytest.mark.parametrize("name", ["org/new-model", "no-such-model"])
def test_a_name_that_is_nowhere_is_refused_with_the_command_that_lists_all(name: str) -> None:
    """A hub is asked by commands, not here (`tests/torch/hub`)."""
    with pytest.raises(ModelError, match=r"no such file or catalogue name.*`quire models`"):
        read_model(name)


def test_how_many_experts_a_token_chooses_is_read_however_it_is_spelled() -> None:
    """By ERNIE's name, layer by layer, or as the family has it; where nobody says, that is noted."""
    mixtral = catalogue_entry("mixtral-8x7b").config
    rest = {name: value for name, value in mixtral.items() if name != "num_experts_per_tok"}
    unsaid = read_config(rest, "mixtral")
    assert (unsaid.experts.per_token, unsaid.experts.share) == (0, 1.0)
    assert [note for note in unsaid.notes if "num_experts_per_tok absent" in note]
    assert read_config({**rest, "moe_k": 3}, "mixtral").experts.per_token == 3
    assert read_config({**rest, "moe_topk": [1, 4, 2]}, "mixtral").experts.per_token == 4
    uncounted = {name: value for name, value in mixtral.items() if name != "num_local_experts"}
    assert read_config(uncounted, "mixtral").experts == read_config(mixtral, "mixtral").experts
    with pytest.raises(ModelError, match="moe_k is 'many': it must be a whole number"):
        read_config({**rest, "moe_k": "many"}, "mixtral")


def test_a_latent_width_of_experts_is_still_refused_where_the_family_has_none() -> None:
    with pytest.raises(ModelError, match="moe_latent_size"):
        read_config({**catalogue_entry("qwen3-30b-a3b").config, "moe_latent_size": 512}, "odd")
