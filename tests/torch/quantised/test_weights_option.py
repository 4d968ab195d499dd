"""`--weights`: a checkpoint quantised at the first start, and cached."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from quantised_folders import SHAPES, allocated, logits, packed_modules, plain_folder, total, write_pair
from quantised_formats import FORMATS
from quire.core.dtypes import DType
from quire.core.errors import InputError, ModelError, QuireError
from quire.fetch.find import converted
from quire.llm import LLM
from quire.models.read import read_model
from quire.models.weight_layout import WeightFormat
from quire.plan.settings import Budget, Settings
from quire.worker.model import packed_cpu, quantise
from quire.worker.model.linears import lay_out
from quire.worker.model.model import load
from quire.worker.model.packed_linear import Packed
from quire.worker.support.tiny import tiny_config
from tiny_folder import make_folder, save_folder

ERRORS = {"int8": 1 / 250, "fp8": 1 / 28, "int4": 1 / 14}
"""Of a weight, relative to the largest: half a step, and what scales in fp16 add."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("weights", ERRORS)
def test_each_weight_is_rounded_and_the_model_computes_with_it(name: str, weights: str) -> None:
    source = plain_folder(name)
    folder = converted(source, weights=weights)
    model, plain = load(folder, torch.float32), load(source, torch.float32)
    done = set[int]()
    for path, module in model.named_modules():
        if isinstance(module, Packed):
            weight = plain.get_parameter(path if ".experts." in path else f"{path}.weight")
            if id(weight) in done:  # tied
                continue
            done.add(id(weight))
            found = module.packed.dequantised()
            found = found.mT if name == "gpt_oss" and ".experts." in path else found
            assert 0 < (found - weight).abs().max() <= ERRORS[weights] * weight.abs().max()
            weight.data = found
    torch.testing.assert_close(logits(model), logits(plain), rtol=1e-3, atol=1e-4)
    kinds = {module.packed.kind.value for module in packed_modules(model)}
    assert kinds == ({weights} if weights != "int4" else {"int4", "int8"})
    lay_out(model)
    for planned in (
        read_model(str(source), weight_format=WeightFormat(DType.FP32, on_cpu=True, packed=weights)),
        read_model(str(folder), weight_format=WeightFormat(DType.FP32, on_cpu=True)),
    ):
        assert abs(total(planned) - allocated(model)) <= 0.01 * allocated(model)


def test_folders_whose_checkpoint_has_changed_or_is_gone_are_removed(tmp_path: Path, cache: Path) -> None:
    """When another one is written: a cache that is never looked at would grow with every download."""
    for name in ("kept", "changed", "gone", "new"):
        (tmp_path / name).mkdir()
        make_folder(tmp_path / name, layers=1)
    kept, changed, gone = (converted(tmp_path / name, weights="int8") for name in ("kept", "changed", "gone"))
    (tmp_path / "changed" / "config.json").touch()
    (tmp_path / "gone" / "model.safetensors").unlink()
    (cache / "mine").mkdir()
    (cache / "mine" / "manifest.json").write_text("[]")
    assert all(folder.exists() for folder in (kept, changed, gone))
    new = converted(tmp_path / "new", weights="int8")
    assert {path.name for path in cache.iterdir()} == {kept.name, new.name, "mine"}


def test_the_folder_is_written_once_and_again_if_the_checkpoint_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_folder(tmp_path)
    first = converted(source, weights="int8")
    assert (first / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(quantise, "_save", None)
        assert converted(source, weights="int8") == first
    (source / "config.json").write_text((source / "config.json").read_text() + "\n")
    assert converted(source, weights="int8") != first


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error: No space left on device")],
    ids=["system", "safetensors"],
)
def test_a_full_disk_is_one_line_and_leaves_nothing(
    error: Exception, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, saved = make_folder(tmp_path), []

    def save(_tensors: object, path: Path, _metadata: object) -> None:
        path.write_bytes(b"half")
        saved.append(path)
        if len(saved) > 2:
            raise error

    monkeypatch.setattr(quantise, "save_file", save)
    monkeypatch.setattr(quantise, "SHARD_BYTES", 40_000)
    with pytest.raises(InputError, match=r"in int4 cannot be written to .*No space left on device$"):
        converted(source, weights="int4")
    assert list(cache.iterdir()) == []


def test_several_files_are_written_for_large_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_folder(tmp_path)
    whole = logits(load(converted(source, weights="int4"), torch.float32))
    monkeypatch.setattr(quantise, "SHARD_BYTES", 40_000)
    (source / "config.json").write_text((source / "config.json").read_text() + "\n")
    folder = converted(source, weights="int4")
    assert len(list(folder.glob("*.safetensors"))) == 3
    assert logits(load(folder, torch.float32)).equal(whole)


def test_a_quantised_checkpoint_is_refused_by_plan_and_conversion(tmp_path: Path) -> None:
    case = FORMATS["AWQ"]
    folder = write_pair(tmp_path, "llama", case.of_matrices(), case.section).packed
    with pytest.raises(ModelError) as loaded:
        converted(folder, weights="int4")
    with pytest.raises(ModelError) as planned:
        read_model(str(folder), weight_format=WeightFormat(DType.FP32, on_cpu=True, packed="int4"))
    assert str(loaded.value) == str(planned.value)
    assert "quantised already by awq: leave out --weights int4" in str(loaded.value)


@pytest.mark.parametrize(
    ("name", "weights"), [*((name, "int8") for name in SHAPES), ("llama", "fp8"), ("llama", "int4")]
)
def test_an_llm_runs_on_quantised_weights(
    name: str, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the option to tokens, which are those of transformers' attention on the same weights. Planes are left out:
    they round tokens to bf16."""
    monkeypatch.setattr(packed_cpu, "fits", lambda _packed: False)
    source = save_folder(tmp_path, tiny_config(name))
    settings = Settings(max_length=128, max_requests=2, batch_tokens=32)
    with LLM(source, device="cpu", weights=weights, settings=settings, budget=Budget(pool_bytes=1 << 20)) as llm:
        (found,) = llm.generate("the quick brown fox", max_tokens=12, raw=True)
        ids = torch.tensor([llm.tokenizer.encode("the quick brown fox")])
    model = load(converted(source, weights=weights), torch.float32)
    model.set_attn_implementation("eager")
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert list(found.token_ids) == expected[0, ids.shape[1] :].tolist()


def test_another_name_for_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QuireError, match="int3"):
        LLM(make_folder(tmp_path), device="cpu", weights="int3")
