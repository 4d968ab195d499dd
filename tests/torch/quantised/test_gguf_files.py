"""GGUF files that are cut off, damaged, split or stored in ways that are not read; disks that are full."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter

from command import refused, run_json
from gguf_models import ARCHITECTURES, Q, Written, random_model, write_model, write_parts
from quire.core.errors import ModelError
from quire.fetch import convert
from quire.fetch.convert import configuration_of, folder_of_gguf, name_of_gguf
from quire.fetch.folder import in_silence
from quire.options.child import python
from quire.worker.model.model import load
from quire.worker.weights.gguf import open_gguf
from quire.worker.weights.gguf_header import read_header
from quire.worker.weights.safetensors import read_checkpoint

LLAMA = ARCHITECTURES["llama"]
READERS = (open_gguf, configuration_of)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    return write(tmp_path / "m.gguf")


def write(path: Path, written: Written = LLAMA, sorts: tuple[Q, ...] = (Q.Q8_0, Q.Q4_1), **sizes: Any) -> Path:
    write_model(path, written, random_model(written, **sizes), sorts)
    return path


@pytest.mark.parametrize("command", [("plan", "--pool", "1MiB"), ("generate", "--prompt", "a", "--pool", "1MiB")])
def test_a_file_that_is_cut_off_is_refused_by_file_and_tensor(
    file: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = file.read_bytes()
    end = file.stat().st_size
    file.write_bytes(whole[: end - 200])
    said = refused(capsys, command[0], str(file), *command[1:])
    assert f"{file} is cut off: tensor output.weight ends at byte " in said
    assert f"the file has {end - 200:,}: download it again" in said
    assert not (file.parent / "cache").exists()


def test_scales_that_are_no_numbers_are_refused_by_tensor_and_nothing_is_left(file: Path) -> None:
    tensor = read_header(file).tensors["blk.1.ffn_up.weight"]
    data = bytearray(file.read_bytes())
    data[tensor.offset : tensor.offset + 2] = np.array(np.inf, np.float16).tobytes()
    file.write_bytes(data)
    with pytest.raises(ModelError, match=r"m\.gguf: scales of tensor blk\.1\.ffn_up\.weight are not all finite: "):
        folder_of_gguf(file, in_silence)
    assert not list((file.parent / "cache").iterdir())


def test_a_full_disk_or_an_interrupt_leaves_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(error: BaseException) -> Callable[..., None]:
        def write_checkpoint(target: Path, *_others: Any) -> None:
            target.write_bytes(b"half")
            raise error

        return write_checkpoint

    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(convert, "write_checkpoint", failing(full))
    with pytest.raises(ModelError, match=r"m\.gguf cannot be converted into .*: No space left on device; free space"):
        folder_of_gguf(file, in_silence)
    assert not list((file.parent / "cache").iterdir())
    monkeypatch.setattr(convert, "write_checkpoint", failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        folder_of_gguf(file, in_silence)
    assert not list((file.parent / "cache").iterdir())
    monkeypatch.undo()
    assert (folder_of_gguf(file, in_silence, file.parent / "made") / "model.safetensors").exists()


def test_what_a_killed_process_left_goes_with_the_next_conversion(file: Path) -> None:
    """What another one is writing stays."""
    program = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from quire.fetch.convert import folder_of_gguf
        folder_of_gguf(Path({str(file)!r}), lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    """)
    cache = file.parent / "cache"
    assert subprocess.run(python("-c", program), check=False).returncode == -signal.SIGKILL
    (left,) = cache.iterdir()
    assert (left / "fresh" / "model.safetensors").exists()
    other = left.with_name(f"{left.name.rsplit('-', 2)[0]}-{os.getpid()}-x")
    other.mkdir()
    folder = folder_of_gguf(file, in_silence)
    assert set(cache.iterdir()) == {folder, other}


def test_a_model_in_several_files_is_one_model(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = write_parts(file.with_name("parts.gguf"), LLAMA, (Q.Q8_0, Q.Q4_1), 8)
    assert len(others) > 1
    assert first.name == f"parts-00001-of-{len(others) + 1:05}.gguf"
    whole, joined = (folder_of_gguf(one, in_silence) for one in (file, first))
    ours, theirs = (dict(open_gguf(one).read()) for one in (first, file))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], values) for name, values in theirs.items())
    assert (whole / "config.json").read_bytes() == (joined / "config.json").read_bytes()
    plans = [run_json(capsys, str(one), "--memory", "4GiB")["ranks"] for one in (file, first)]
    assert plans[0] == plans[1]
    before = name_of_gguf(first)
    others[1].touch()
    assert name_of_gguf(first) != before, "each part belongs to the name"
    for read in READERS:
        with pytest.raises(ModelError, match=rf"part 2 of {len(others) + 1}: give the first one, {first.name}"):
            read(others[0])
    moved = shutil.copy(first, file.with_name("alone.gguf"))
    others[-1].unlink()
    for read in READERS:
        with pytest.raises(ModelError, match=f"lacks 1 of its {len(others) + 1} parts, {others[-1].name} first"):
            read(first)
        with pytest.raises(ModelError, match=rf"is one of {len(others) + 1} parts, 1 is named like one: keep"):
            read(Path(moved))


def refusal(path: Path, architecture: str = "llama", **fields: Any) -> str:
    """What reading says about a file with these fields."""
    model = random_model(LLAMA)
    more = {name.replace("__", "."): value for name, value in fields.items()}
    written = Written(architecture, "llama", fields=more, is_rotated_in_pairs=True)
    write_model(path, written, model)
    said = []
    for read in READERS:
        with pytest.raises(ModelError) as error:
            read(path)
        said.append(str(error.value))
    assert said[0] == said[1]
    return said[0]


def test_what_would_be_read_wrongly_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    assert "m.gguf is of architecture mamba, read are llama, qwen2, " in refusal(path, "mamba")
    assert "llama.rope.scaling.type su, which is not read" in refusal(path, rope__scaling__type="su")
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0, "rope__scaling__original_context_length": 64}
    said = refusal(path, **yarn, rope__scaling__yarn_log_multiplier=0.1)
    assert "llama.rope.scaling.yarn_log_multiplier 0.1" in said
    said = refusal(path, rope__scaling__type="yarn", rope__scaling__factor=2.0)
    assert "has no number llama.rope.scaling.original_context_length: is the file whole?" in said
    assert "llama.attention.value_length other than attention.key_length" in refusal(path, attention__value_length=8)
    assert "llama.rope.dimension_count other than the head's 16" in refusal(path, rope__dimension_count=8)
    assert "states 3 layers and has tensors of 2: is the file whole?" in refusal(path, block_count=3)
    assert "has no number llama.block_count" in refusal(path, block_count="two")


def test_tensors_without_a_place_are_refused_by_name(tmp_path: Path) -> None:
    model = random_model(LLAMA)
    odd = Written("llama", "llama", is_rotated_in_pairs=True, tensors={"blk.0.ssm_a": [1.0]})
    write_model(tmp_path / "m.gguf", odd, model)
    with pytest.raises(ModelError, match=r"m\.gguf has a tensor blk\.0\.ssm_a that llama has no place for"):
        open_gguf(tmp_path / "m.gguf")
    write_model(tmp_path / "m.gguf", Written("qwen3", "llama"), model)
    folder = folder_of_gguf(tmp_path / "m.gguf", in_silence, tmp_path / "made")
    with pytest.raises(ModelError, match=r"has no weights for model\.layers\.0\.self_attn\.k_norm\.weight, "):
        load(folder, torch.float32)


def test_a_gate_without_its_other_half_is_refused(tmp_path: Path) -> None:
    model = random_model(ARCHITECTURES["mixtral"])
    plain = GGUFWriter.add_tensor

    def add_tensor(self: Any, name: str, *given: Any, **options: Any) -> None:
        if name != "blk.1.ffn_up_exps.weight":
            plain(self, name, *given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GGUFWriter, "add_tensor", add_tensor)
        write_model(tmp_path / "m.gguf", ARCHITECTURES["mixtral"], model)
    with pytest.raises(
        ModelError, match=r"has no tensor blk\.1\.ffn_up_exps\.weight, but blk\.1\.ffn_gate_exps\.weight"
    ):
        open_gguf(tmp_path / "m.gguf")


def test_a_damaged_header_is_refused_in_a_sentence_or_read(file: Path) -> None:
    """Never an error of another kind, and never a tensor of another shape than its parameter."""
    data, random = file.read_bytes(), np.random.default_rng(0)
    end = read_header(file).tensors["token_embd.weight"].offset
    said = []
    for _ in range(60):
        where, count = int(random.integers(0, end)), int(random.choice([1, 4, 8]))
        file.write_bytes(data[:where] + random.bytes(count) + data[where + count :])
        said.append(refusal_of(file))
    assert not any("\n" in text for text in said)
    assert 10 < sum(map(bool, said)) < 60


def refusal_of(file: Path) -> str:
    """Empty: it is read, and each parameter has the shape that was announced."""
    try:
        opened = open_gguf(file)
        named = {name: shape for name, _, shape in opened.parameters()}
        found = {name: values.shape for name, values in opened.read()}
    except ModelError as error:
        return str(error)
    assert found == named
    return ""


def test_the_plan_of_a_quantised_file_counts_its_bits(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same before and after it is converted."""
    before = run_json(capsys, str(file), "--memory", "1GiB", "--device", "cpu")
    folder = folder_of_gguf(file, in_silence)
    after = run_json(capsys, str(file), "--memory", "1GiB", "--device", "cpu")
    assert before == after
    (weights,) = [line["bytes"] for line in after["ledger"] if line["name"] == "weights"]
    stored = sum(tensor.nbytes for _, tensor in read_checkpoint(folder))
    assert stored <= weights <= 1.1 * stored  # on planes, codes of 8 bits take 10
    assert weights < 0.3 * 4 * sum(parameter.numel() for parameter in random_model(LLAMA).parameters())
