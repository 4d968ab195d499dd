"""A process reads its share of a checkpoint, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from loading import make_checkpoint, measure
from quire.core.errors import ModelError
from quire.core.units import MIB
from quire.worker.ranks.member import Member
from quire.worker.ranks.reading import read_share
from quire.worker.ranks.share import Share
from quire.worker.ranks.threads import ThreadGroup
from quire.worker.weights.slices import StoredTensors
from split_models import config_of_type
from tiny_folder import save_folder

NOISE = 8 * MIB
"""Of Python and the allocator: much less than the tensor that must not be there twice."""


def parts_of(folder: Path, ranks: int, layers: range = range(4), stages: int = 1) -> list[dict[str, torch.Tensor]]:
    group = ThreadGroup(ranks, stages)
    return [
        dict(read_share(folder, Member(share, *group.ports(share)), layers, torch.float32).state_dict())
        for share in group.shares[:ranks]
    ]


@pytest.mark.parametrize("has_experts", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_the_peak_of_a_rank_that_reads_is_below_its_share_and_one_tensor(has_experts: bool, tmp_path: Path) -> None:
    """On a checkpoint of 96 MiB, of whose experts each is a tensor of its own. Red if a rank ever held the whole of
    what it cuts, or a second tensor."""
    make_checkpoint(tmp_path, 96, has_experts)
    found = measure(tmp_path, 1, 2)
    assert found.share < 55 * MIB
    assert found.peak < found.share + found.tensor + NOISE, found.line()


@pytest.mark.soak
def test_the_peak_is_below_share_and_tensor_on_a_checkpoint_of_a_gibibyte(tmp_path: Path) -> None:
    """With no allowance: what Python takes is less than the tensor."""
    make_checkpoint(tmp_path, 1024, has_experts=False)
    for rank in range(2):
        found = measure(tmp_path, rank, 2)
        assert found.peak < found.share + found.tensor, found.line()


def test_parts_of_two_ranks_make_the_whole(tmp_path: Path) -> None:
    """Heads, widths and the vocabulary, of an odd number of tokens; what is not cut is on both. Red if a rank read
    another's rows."""
    whole = load_file(save_folder(tmp_path, config_of_type("llama")) / "model.safetensors")
    first, second = parts_of(tmp_path, 2)
    for name, axis in (("q_proj", 0), ("k_proj", 0), ("o_proj", 1), ("down_proj", 1), ("input_layernorm", None)):
        key = next(one for one in whole if name in one)
        joined = first[key] if axis is None else torch.cat([first[key], second[key]], dim=axis)
        assert joined.equal(whole[key]), name
    head = torch.cat([first["lm_head.weight"], second["lm_head.weight"]])
    assert head[:-1].equal(whole["lm_head.weight"])
    assert not head[-1].any(), "the last rank has one token fewer"


def test_experts_are_merged_from_their_parts(tmp_path: Path) -> None:
    """Each expert is stored alone: of each its own rows or columns are read, then stacked. Red if halves of gates and
    inputs were joined in another order than the whole's."""
    save_folder(tmp_path, config_of_type("qwen3_moe"))
    (whole,), (first, second) = parts_of(tmp_path, 1), parts_of(tmp_path, 2)
    name = "model.layers.1.mlp.experts"
    gates, inputs = whole[f"{name}.gate_up_proj"].chunk(2, dim=1)
    for part, own in ((0, first), (1, second)):
        expected = torch.cat([gates.chunk(2, dim=1)[part], inputs.chunk(2, dim=1)[part]], dim=1)
        assert own[f"{name}.gate_up_proj"].equal(expected)
    down = torch.cat([first[f"{name}.down_proj"], second[f"{name}.down_proj"]], dim=2)
    assert down.equal(whole[f"{name}.down_proj"])


def test_a_checkpoint_that_lacks_an_expert_is_refused(tmp_path: Path) -> None:
    """Parts of the experts that are there could be stacked all the same. Red if their number were not compared."""
    file = save_folder(tmp_path, config_of_type("qwen3_moe")) / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if ".layers.1.mlp.experts.3." not in name}
    save_file(kept, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"another shape \(\(3, .*, not \(4, .*layers\.1\.mlp\.experts"):
        parts_of(tmp_path, 2)


def test_a_stage_reads_its_own_layers_alone(tmp_path: Path) -> None:
    """The first stage of two has no head, and no layer of the second. Red if it read them."""
    save_folder(tmp_path, config_of_type("llama"))
    (own,) = parts_of(tmp_path, 1, range(2), stages=2)
    layers = {name.split(".")[2] for name in own if ".layers." in name}
    assert layers == {"0", "1"}
    assert "lm_head.weight" not in own
    assert "model.embed_tokens.weight" in own


def test_what_a_checkpoint_lacks_is_refused_by_name(tmp_path: Path) -> None:
    """A tensor of another shape too. Red if a rank began with random weights."""
    file = save_folder(tmp_path, config_of_type("llama")) / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.3.mlp.down_proj.weight"
    without = {key: tensor for key, tensor in tensors.items() if key != name}
    save_file(without, file, {"format": "pt"})
    with pytest.raises(ModelError, match=rf"has no weights for {name}: is the checkpoint whole\?"):
        parts_of(tmp_path, 2)
    save_file({**tensors, name: tensors[name][:-1].clone()}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=rf"has weights of another shape \(\(63, 96\), not \(64, 96\)\) for {name}"):
        parts_of(tmp_path, 2)


def test_slices_of_stored_tensors_are_those_of_the_tensors(tmp_path: Path) -> None:
    """Rows are one read; columns are cut from blocks of rows, here of more than one block's bytes."""
    rows = torch.arange(3000 * 6000, dtype=torch.float32).view(3000, 6000)
    many = {"rows": rows, "experts": rows[:600].reshape(6, 100, 6000).clone(), "scalar": torch.tensor(3.5)}
    save_file(many, tmp_path / "model.safetensors")
    with StoredTensors(tmp_path) as stored:
        assert stored["scalar"][...].item() == 3.5
        assert stored["rows"][slice(7, 19)].equal(rows[7:19])
        assert stored["rows"][slice(None), slice(4000, 6000)].equal(rows[:, 4000:])
        assert stored["experts"][slice(None), slice(10, 60)].equal(many["experts"][:, 10:60])
        assert stored["experts"][slice(None), slice(None), slice(0, 5)].equal(many["experts"][..., :5])


def test_quantised_weights_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """Red if codes were cut as if they were weights."""
    save_folder(tmp_path, config_of_type("llama"))
    config = (
        (tmp_path / "config.json").read_text().replace("{", '{"quantization_config": {"quant_method": "quire"},', 1)
    )
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelError, match="has quantised weights"):
        read_share(tmp_path, Member(Share(0, 2, 0, 1)), range(4), torch.float32)
