"""The models known by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from model_configs import kinds

from quire.core.errors import ModelError
from quire.models import catalogue
from quire.models.catalogue import catalogue_entry, catalogue_names, spelled_out
from quire.models.read import read_config, read_model
from quire.models.shape import NO_EXPERTS, Experts

SHARED = Path(__file__).parents[4] / "shared" / "models"
FILES = sorted(SHARED.glob("*.json")) if SHARED.is_dir() else []
INCOMPLETE = "granite-4.0-h-350m"
WITH_SINKS = "mistral-7b-v0.1"


@pytest.mark.parametrize("name", catalogue_names())
def test_every_entry_reads(name: str) -> None:
    """With weights, layers and a name of its own; no released field that memory depends on is a default."""
    shape = read_model(name)
    assert shape.name == name
    assert shape.weights_known
    assert shape.embedding_bytes > 0
    assert all(layer.weight_bytes > 0 for layer in shape.layers)
    assert any(kind != "none" for kind in kinds(shape))
    assert not [note for note in shape.notes if "head" in note or "layers absent" in note]


def test_every_entry_with_experts_says_how_many_a_token_chooses() -> None:
    """Without that, what a step takes is not known. Some experts take less than the whole of a token."""
    with_experts = [name for name in catalogue_names() if "experts=" in catalogue_facts(name)]
    shapes = [read_model(name) for name in with_experts]
    assert [shape.name for shape in shapes if not shape.experts.per_token] == ["granite-4.0-h-micro"]
    assert read_model("qwen3-next-80b-a3b").experts == Experts(512, 10, 2048, 512)
    assert read_model("nemotron-3-super").experts.width == 1024
    assert read_model("llama-3.1-8b").experts == NO_EXPERTS


def catalogue_facts(name: str) -> str:
    lines = Path(catalogue.__file__).with_name("catalogue.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if name in line.replace(",", " ").split())


def test_names_and_aliases_are_unique_lower_case_and_find_their_entry() -> None:
    """One name, one model."""
    entries = [catalogue_entry(name) for name in catalogue_names()]
    names = [name for entry in entries for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))
    assert all(name == name.lower() and "_" not in name for name in names)
    assert all(catalogue_entry(alias).name == entry.name for entry in entries for alias in entry.aliases)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("llama-3.3-70b-instruct", "meta-llama-3.1-70b"),
        ("deepseek-r1", "deepseek-v3"),
        ("nemotron-3-nano", "nvidia-nemotron-3-nano-30b-a3b-bf16"),
        ("gemma-3-27b-it", "gemma-3-27b"),
    ],
)
def test_short_names_are_aliases(alias: str, name: str) -> None:
    """The entry tells its own name."""
    assert catalogue_entry(alias).name == name


def test_an_absent_name_is_an_error_with_the_command_that_lists_all() -> None:
    """The same root as every other mistake."""
    with pytest.raises(ModelError, match="`quire models`"):
        catalogue_entry("gpt-7")


@pytest.mark.parametrize(
    ("pattern", "layers", "letters"),
    [("5w1f*", 8, "wwwwwfww"), ("1h(1h1o)*", 5, "hhoho"), ("2v1f", 3, "vvf"), ("2s(1o1h)*", 3, "sso")],
)
def test_patterns_are_spelled_out(pattern: str, layers: int, letters: str) -> None:
    """Runs, repeated to the last layer."""
    assert spelled_out(pattern, layers) == letters


def test_listing_the_catalogue_loads_no_family() -> None:
    """Names are wanted by completion and error messages: reading them must stay cheap."""
    code = (
        "import sys; from quire.models.catalogue import catalogue_names; assert catalogue_names(); "
        "assert not [m for m in sys.modules if m.startswith('quire.models.families')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


@pytest.mark.skipif(not FILES, reason="the folder of collected configurations is not here")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_catalogue_and_the_collected_configurations_agree(file: Path) -> None:
    """Same layers, same memories, same drafts."""
    name = file.stem.lower()
    if name == INCOMPLETE:
        with pytest.raises(ModelError, match="layer_types is missing"):
            read_model(str(file))
        return
    config = json.loads(file.read_text(encoding="utf-8"))
    if name == WITH_SINKS:
        assert config.pop("attention_sink_size") == 4
    ours, theirs = read_model(name), read_config(config, name)
    assert [layer.memories for layer in ours.layers] == [layer.memories for layer in theirs.layers]
    assert [layer.shares_with for layer in ours.layers] == [layer.shares_with for layer in theirs.layers]
    assert [layer.memories for layer in ours.draft_layers] == [layer.memories for layer in theirs.draft_layers]
    assert (ours.hidden_size, ours.query_heads, ours.family) == (theirs.hidden_size, theirs.query_heads, theirs.family)
    assert (ours.experts.count, ours.experts.per_token) == (theirs.experts.count, theirs.experts.per_token)


@pytest.mark.skipif(not FILES, reason="the folder of collected configurations is not here")
def test_the_collected_mistral_keeps_four_sinks() -> None:
    """The one configuration with `attention_sink_size`."""
    (memory,) = read_model(str(SHARED / "Mistral-7B-v0.1.json")).layers[0].memories
    assert (memory.kind, memory.sinks, memory.window) == ("sink", 4, 4096)
