"""ModelShapes as JSON: written by hand, or exact copies of what was read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_configs import bytes_of_kind, kinds, memory_bytes, token_bytes

from quire.core.dtypes import DType
from quire.core.errors import ModelError
from quire.core.memory import Follows, Memory, Part
from quire.kinds import KINDS
from quire.models.catalogue import catalogue_names
from quire.models.read import read_model
from quire.models.shape import Experts, Layer, ModelShape, Rope
from quire.models.shapefile import shape_from_json, shape_to_json

FULL = {"kind": "full", "kv_heads": 8, "head_dim": 128}


def shape(*layers: object, **rest: object) -> ModelShape:
    return shape_from_json({"quire_shape": 1, "name": "odd", "layers": list(layers), **rest})


def memory(**fields: object) -> Memory:
    (only,) = shape(fields).layers[0].memories
    return only


def test_a_hand_written_mix_reads_as_it_says() -> None:
    """19 full and 18 window layers, 48 states, and one of everything else."""
    odd = shape(
        {"count": 19, **FULL},
        {"count": 18, "kind": "window", "window": 1024, "kv_heads": 8, "head_dim": 128},
        {"count": 48, "kind": "state", "bytes": 2_146_304},
        {"kind": "none"},
        {"shares_with": 3},
        max_length=131_072,
    )
    assert kinds(odd) == ["full"] * 19 + ["window"] * 18 + ["state"] * 48 + ["none", "none"]
    assert bytes_of_kind(odd, "state") == 48 * 2_146_304
    assert token_bytes(odd) == 37 * 4_096
    assert (odd.layers[-1].shares_with, odd.max_length, odd.weights_known) == (3, 131_072, False)


def test_experts_read_as_they_are_written() -> None:
    layer = {**FULL, "weight_bytes": 100, "expert_weight_bytes": 90}
    odd = shape(layer, experts=64, experts_per_token=4, expert_width=128)
    assert (odd.experts, odd.experts.share) == (Experts(64, 4, 128), 1 / 16)
    assert odd.layers[0].expert_weight_bytes == 90
    assert shape_from_json(shape_to_json(odd)) == odd
    with pytest.raises(ModelError, match="expert_weight_bytes is 101: it must be at most 100"):
        shape({**layer, "expert_weight_bytes": 101})


@pytest.mark.parametrize(
    ("fields", "kind", "size"),
    [
        ({**FULL, "value_dim": 64}, "full", 8 * (128 + 64) * 2),
        ({**FULL, "kind": "chunked", "chunk": 8192}, "chunked", 4_096),
        ({**FULL, "kind": "sink", "sinks": 4, "window": 4096}, "sink", 4_096),
        ({**FULL, "kind": "cross", "encoder_tokens": 1500}, "cross", 4_096),
        ({"kind": "latent", "rank": 512, "rope": 64}, "latent", 1_152),
        ({"kind": "latent", "rank": 512, "rope": 64, "indexer": 128, "tokens_per_state": 4}, "latent", 1_284),
        ({"kind": "latent", "rank": 512}, "latent", 1_024),
        ({"kind": "indexed", "top_tokens": 9, "rank": 512, "rope": 64, "indexer": 128}, "indexed", 1_408),
        ({"kind": "indexed", "top_tokens": 9, "rank": 512, "rope": 64}, "indexed", 1_152),
        ({"kind": "state", "bytes": 7}, "state", 7),
        ({"kind": "state", "bytes": 4096, "heads": 8}, "state", 4_096),
    ],
)
def test_each_kind_has_a_short_form(fields: dict[str, object], kind: str, size: int) -> None:
    """The sizes a person knows, and nothing else."""
    found = memory(**fields)
    assert (found.kind, memory_bytes(found)) == (kind, size)


def test_every_kind_can_be_described() -> None:
    with pytest.raises(ModelError, match="kind is 'elephant': choose one of ") as caught:
        memory(kind="elephant")
    assert set(str(caught.value).partition("one of ")[2].split(", ")) == set(KINDS)


def test_a_state_is_divided_among_ranks_only_along_heads() -> None:
    """Without heads every rank keeps all of it."""
    assert memory(kind="state", bytes=4096).parts[0].replicated
    divided = memory(kind="state", bytes=4096, heads=8).parts[0]
    assert (divided.heads, divided.replicated) == (8, False)


def test_the_long_form_says_everything() -> None:
    """Parts with dtype, what they follow, who keeps them and their scales."""
    part = {
        "name": "row", "heads": 2, "width": 96, "dtype": "fp8", "follows": "kv", "replicated": True, "scale_bytes": 4,
    }  # fmt: skip
    found = memory(kind="window", window=8, parts=[part], purpose="compressor", rewinds=False)
    assert found.parts == (Part("row", 2, 96, DType.FP8, Follows.KV, True, 4),)
    assert (found.purpose, found.rewinds) == ("compressor", False)


def test_rotary_frequencies_that_depend_on_lengths_are_part_of_a_shape() -> None:
    """A plan made from a shape file chooses the same ones as a plan made from the configuration."""
    long = {"sort": "longrope", "original_tokens": 4096, "layers": "full_attention"}
    odd = shape(FULL, ropes=[long, {"sort": "dynamic", "original_tokens": 2048, "factor": 4.0}])
    assert odd.ropes == (Rope("longrope", 4096, "full_attention"), Rope("dynamic", 2048, factor=4.0))
    assert odd.stretched_length is None, "longrope cannot be stretched"
    stretched = shape(FULL, max_length=2048, ropes=[{"sort": "dynamic", "original_tokens": 2048, "factor": 4.0}])
    assert stretched.stretched_length == 8192
    for one in (odd, stretched):
        assert shape_from_json(json.loads(json.dumps(shape_to_json(one)))) == one


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ({"sort": "yarn", "original_tokens": 1}, "ropes[0].sort is 'yarn': choose longrope or dynamic"),
        ({"sort": "longrope"}, "ropes[0].original_tokens is missing"),
        ({"sort": "dynamic", "original_tokens": 9, "factor": 0}, "ropes[0].factor is 0: it must be a number above 0"),
        ({"sort": "dynamic", "original_tokens": 9, "theta": 1}, "ropes[0].theta is not known here"),
    ],
)
def test_a_mistake_in_rotary_frequencies_is_named(rope: dict[str, object], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        shape(FULL, ropes=[rope])
    assert words in str(caught.value)


def test_a_layer_may_have_several_memories_and_weights() -> None:
    """Weights make the shape's weights known."""
    both = shape({"count": 4, "memories": [FULL, {"kind": "state", "bytes": 64}], "weight_bytes": 10})
    assert kinds(both) == ["full+state"] * 4
    assert both.weights_known
    assert both.layers[0].weight_bytes == 10


@pytest.mark.parametrize("name", catalogue_names())
def test_every_catalogue_model_survives_the_round_trip(name: str) -> None:
    """Also what equality does not see: notes and origins."""
    before = read_model(name)
    after = shape_from_json(json.loads(json.dumps(shape_to_json(before))))
    assert after == before
    assert after.notes == before.notes
    assert repr(after) == repr(before)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({**FULL, "kind": "window", "window": 0}, "layers[0].window is 0"),
        ({**FULL, "kind": "window"}, "layers[0].window is missing"),
        ({**FULL, "kind": "chunked", "chunk": 0}, "layers[0].chunk is 0"),
        ({**FULL, "kind": "sink", "window": 4}, "layers[0].sinks is missing"),
        ({**FULL, "head_dim": -1}, "layers[0].head_dim is -1"),
        ({**FULL, "head_dim": 1.5}, "layers[0].head_dim is 1.5"),
        ({**FULL, "kv_heads": "8"}, "layers[0].kv_heads is '8'"),
        ({**FULL, "count": 0}, "layers[0].count is 0"),
        ({**FULL, "count": 5000}, "layers[0].count is 5000"),
        ({**FULL, "colour": "red"}, "layers[0].colour is not known here"),
        ({**FULL, "window": 4}, "layers[0].window is not known here"),
        ({"kind": "none", "kv_heads": 8}, "layers[0].kv_heads is not known here"),
        ({"kind": "magic"}, "layers[0].kind is 'magic'"),
        ({}, "layers[0] has nothing: give one of kind, memories or shares_with"),
        ({**FULL, "shares_with": 0}, "layers[0] has shares_with and kind"),
        ({"shares_with": 0}, "shares_with 0: that layer keeps nothing itself"),
        ({"shares_with": 9}, "shares_with 9: there are 1 layers"),
        ({"kind": "state", "bytes": 10, "heads": 3}, "layers[0].bytes 10 does not divide by heads 3"),
        ({"kind": "state"}, "layers[0].bytes is missing"),
        ({"kind": "full", "parts": []}, "layers[0].parts is []"),
        ({"kind": "full", "parts": [{"name": "k", "heads": 1, "width": 0}]}, "layers[0].parts[0].width is 0"),
        ({"kind": "full", "parts": [{"heads": 1, "width": 1}]}, "layers[0].parts[0].name is missing"),
        ({"kind": "full", "parts": [{"name": "k", "heads": 1, "width": 1, "dtype": "fp5"}]}, "fp5"),
        ({"kind": "full", "parts": [{"name": "k", "heads": 1, "width": 1, "follows": "me"}]}, "follows is 'me'"),
        ({"kind": "full", "parts": [{"name": "k", "heads": 1, "width": 1, "x": 1}]}, "parts[0].x is not known"),
        ({"memories": [{**FULL, "bytes": 3}]}, "layers[0].memories[0].bytes is not known"),
        (7, "layers[0] is 7: it must be an object"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_place(layer: object, words: str) -> None:
    """Unknown keys too: a typing error must not become another model."""
    with pytest.raises(ModelError) as caught:
        shape(layer)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ({"quire_shape": 2, "layers": [FULL]}, "quire_shape is 2"),
        ({"quire_shape": 1}, "layers is missing"),
        ({"quire_shape": 1, "layers": []}, "layers is missing"),
        ({"quire_shape": 1, "layers": [FULL], "max_length": 0}, "max_length is 0"),
        ({"quire_shape": 1, "layers": [FULL], "depth": 3}, "depth is not known here"),
        ({"quire_shape": 1, "layers": [{**FULL, "count": 3000}] * 2}, "layers describes 6,000 layers"),
    ],
)
def test_mistakes_of_the_whole_file_are_named(file: dict[str, object], words: str) -> None:
    """Version, emptiness, unknown keys, sizes."""
    with pytest.raises(ModelError) as caught:
        shape_from_json(file)
    assert words in str(caught.value)


sizes = st.integers(1, 1 << 20)
parts = st.builds(
    Part,
    name=st.text("abc_", min_size=1, max_size=8),
    heads=sizes,
    width=sizes,
    dtype=st.sampled_from(DType),
    follows=st.sampled_from(Follows),
    replicated=st.booleans(),
    scale_bytes=st.integers(0, 64),
    origin=st.text(max_size=8),
)
numbers = {
    "window": ("window",), "chunked": ("chunk",), "sink": ("sinks", "window"), "cross": ("encoder_tokens",),
    "indexed": ("top_tokens",),
}  # fmt: skip


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    kind = draw(st.sampled_from(["full", "latent", "state", *numbers]))
    own = {name: draw(sizes) for name in numbers.get(kind, ())}
    rest = {"rewinds": draw(st.booleans()), "purpose": draw(st.sampled_from(["attention", "state", "indexer"]))}
    chosen = tuple(draw(st.lists(parts, min_size=1, max_size=3)))
    return Memory.of(kind, chosen, {"tokens_per_state": draw(st.integers(1, 128)), **own, **rest})


layers = st.builds(
    Layer,
    memories=st.lists(memories(), max_size=2).map(tuple),
    shares_with=st.none(),
    weight_bytes=st.integers(0, 1 << 30),
    replicated_weight_bytes=st.integers(0, 1 << 20),
)
shapes = st.builds(
    ModelShape,
    name=st.text(max_size=12),
    family=st.text(max_size=12),
    layers=st.lists(layers, min_size=1, max_size=4).map(tuple),
    draft_layers=st.lists(layers, max_size=1).map(tuple),
    max_length=st.none() | sizes,
    hidden_size=st.integers(0, 1 << 20),
    vocab_size=st.integers(0, 1 << 20),
    embedding_bytes=st.integers(0, 1 << 30),
    weights_known=st.booleans(),
    notes=st.lists(st.text(max_size=10), max_size=2).map(tuple),
)


@pytest.mark.law
@given(shapes)
def test_any_shape_survives_the_round_trip(before: ModelShape) -> None:
    """Through JSON text and back, byte for byte in what it prints."""
    after = shape_from_json(json.loads(json.dumps(shape_to_json(before))))
    assert repr(after) == repr(before)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.law
@given(
    st.sampled_from(["kind", "window", "count", "kv_heads", "memories", "parts", "shares_with", "weight_bytes"]), junk
)
def test_junk_in_a_shape_file_never_becomes_a_traceback(name: str, value: object) -> None:
    """Read, or a ModelError of one line."""
    complaint = ""
    try:
        shape({**FULL, name: value})
    except ModelError as error:
        complaint = str(error)
    assert "\n" not in complaint
