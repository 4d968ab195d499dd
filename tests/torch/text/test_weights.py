"""Weights from GGUF files and folders of safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from quire.cli.main import main
from quire.core.errors import ModelError
from quire.fetch.convert import configuration_of, convert_gguf, folder_of_gguf
from quire.fetch.find import find_folder
from quire.fetch.folder import in_silence
from quire.text.gguf import tokenizer_config, tokenizer_of
from quire.text.prompts import Prompts
from quire.text.tokenizer import Tokenizer
from quire.worker.weights.gguf import open_gguf
from quire.worker.weights.gguf_header import read_header
from quire.worker.weights.safetensors import read_checkpoint
from quire.worker.weights.write import write_checkpoint
from small_gguf import HEADS, LAYERS, WIDTH, write_gguf

FILES = ("llama-bpe", "gpt-2")


def chat_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    prompts = Prompts(tokenizer, tokenizer.vocab_size)
    return list(prompts.encode(prompts.render([{"role": "user", "content": text}]), add_special_tokens=False))


def test_parameters_come_back_under_the_names_and_in_the_order_transformers_has(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    parameters = write_gguf(tmp_path / "m.gguf", tokenizer.inner)
    file = open_gguf(tmp_path / "m.gguf")
    read = dict(file.read())
    assert read.keys() == parameters.keys()
    assert list(file.parameters()) == [(name, "F32", values.shape) for name, values in parameters.items()]
    for name, values in parameters.items():
        assert np.array_equal(read[name], values), name


def test_a_converted_file_is_a_folder_like_any_other(tokenizer: Tokenizer, tmp_path: Path) -> None:
    parameters = write_gguf(tmp_path / "m.gguf", tokenizer.inner)
    folder, seen = tmp_path / "model", []
    folder.mkdir()
    convert_gguf(open_gguf(tmp_path / "m.gguf"), folder, lambda stage, done, total: seen.append((stage, done, total)))
    size = sum(values.nbytes for values in parameters.values())
    assert seen[-1] == ("convert", size, size)
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]) == (WIDTH, LAYERS, HEADS)
    assert (config["rms_norm_eps"], config["rope_theta"], config["tie_word_embeddings"]) == (1e-5, 1e5, True)
    for name, tensor in read_checkpoint(folder):
        assert torch.equal(tensor, torch.from_numpy(parameters[name])), name
    loaded = Tokenizer.load(folder)
    text = "the fox <|user|> 12 Füße\n"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert chat_tokens(loaded, text) == tokenizer.encode(text)
    assert loaded.eos_token_ids == (0,)


def test_a_file_someone_has_is_converted_once(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "m.gguf", tokenizer.inner)
    folder = folder_of_gguf(tmp_path / "m.gguf", in_silence)
    stages: list[str] = []
    assert folder_of_gguf(tmp_path / "m.gguf", lambda stage, *_: stages.append(stage)) == folder
    assert stages == []
    write_gguf(tmp_path / "m.gguf", tokenizer.inner, GGMLQuantizationType.F16)
    assert folder_of_gguf(tmp_path / "m.gguf", in_silence) != folder


def test_a_length_that_does_not_fit_is_refused_before_anything_is_converted(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the file says of itself is enough for the plan, by every command, and the plan is the folder's."""
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    file = str(tmp_path / "m.gguf")
    write_gguf(Path(file), tokenizer.inner)
    size = ("--pool", "32KiB", "--max-length", "256")
    for command in (["generate", "--prompt", "a", file], ["serve", file, "--port", "0"], ["plan", file]):
        assert main([*command, *size]) == 3
        assert "256 tokens need" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()
    answers = []
    for _ in range(2):
        assert main(["plan", file, "--pool", "1MiB", "--json"]) == 0
        answers.append(capsys.readouterr().out)
        find_folder(file)
    assert answers[0] == answers[1]


def test_digits_stand_alone_before_smollm_merges(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tokenizer.inner)
    fields = {**open_gguf(tmp_path / "m.gguf").fields, "tokenizer.ggml.pre": "smollm"}
    split = tokenizer_of(fields).pre_tokenizer.pre_tokenize_str("a 123")
    assert [piece for piece, _ in split] == ["a", "Ġ", "1", "2", "3"]
    with pytest.raises(ModelError, match="tokenizer is gpt2 / poro-chat; read are llama, and gpt2 with one of gpt-2, "):
        tokenizer_of({**fields, "tokenizer.ggml.pre": "poro-chat"})


def fields_of(tokenizer: Tokenizer, folder: Path, **more: object) -> dict[str, Any]:
    """A file's metadata, with some of its tokenizer's changed."""
    write_gguf(folder / "m.gguf", tokenizer.inner)
    return {**open_gguf(folder / "m.gguf").fields, **{f"tokenizer.ggml.{name}": value for name, value in more.items()}}


@pytest.mark.story
@pytest.mark.parametrize(
    ("split", "said", "begins"),
    [("llama-bpe", None, True), ("llama-bpe", False, False), ("gpt-2", None, False), ("gpt-2", True, True)],
)
def test_a_text_begins_as_the_file_says_and_where_it_says_nothing_as_its_sort_does(
    tokenizer: Tokenizer, tmp_path: Path, split: str, said: bool | None, begins: bool
) -> None:
    """Llama 3's files say nothing, and such models have seen no text without its beginning."""
    more = {} if said is None else {"add_bos_token": said}
    fields = fields_of(tokenizer, tmp_path, pre=split, bos_token_id=2, **more)
    plain = tokenizer.encode("the fox")
    made = Tokenizer(tokenizer_of(fields))
    assert made.encode("the fox") == ([2, *plain] if begins else plain)
    assert made.encode("the fox", add_special_tokens=False) == plain
    assert tokenizer_config(fields)["add_bos_token"] is begins


@pytest.mark.story
def test_a_file_that_names_no_beginning_has_none(tokenizer: Tokenizer, tmp_path: Path) -> None:
    fields = fields_of(tokenizer, tmp_path, pre="llama-bpe", add_bos_token=True)
    assert tokenizer_of(fields).encode("the fox").ids == tokenizer.encode("the fox")


@pytest.mark.story
def test_a_template_writes_the_beginning_itself(tokenizer: Tokenizer, tmp_path: Path) -> None:
    fields = fields_of(tokenizer, tmp_path, pre="llama-bpe", bos_token_id=2)
    tokenizer_of(fields).save(str(tmp_path / "tokenizer.json"))
    config = tokenizer_config(fields) | {"chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = Tokenizer.load(tmp_path)
    assert chat_tokens(loaded, "the fox") == loaded.encode("the fox")
    assert loaded.encode("the fox").count(2) == 1


@pytest.mark.story
def test_a_word_of_the_vocabulary_needs_no_merges_in_files_of_llama_3(tokenizer: Tokenizer, tmp_path: Path) -> None:
    fields = fields_of(tokenizer, tmp_path)
    fields["tokenizer.ggml.tokens"] = [*fields["tokenizer.ggml.tokens"], "zyx"]
    fields["tokenizer.ggml.token_type"] = [*fields["tokenizer.ggml.token_type"], 1]
    whole, merged = (tokenizer_of({**fields, "tokenizer.ggml.pre": split}).encode("zyx").ids for split in FILES)
    assert whole == [tokenizer.vocab_size]
    assert len(merged) == 3


def test_a_file_that_is_not_gguf_says_so(tmp_path: Path) -> None:
    for data in (b"not a model at all, but long enough", b"", b"GGUF", b"GGUF" + b"\xff" * 40):
        (tmp_path / "m.gguf").write_bytes(data)
        for read in (open_gguf, configuration_of):
            with pytest.raises(ModelError, match="cannot be read as GGUF"):
                read(tmp_path / "m.gguf")


def test_a_header_that_is_torn_anywhere_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tokenizer.inner)
    whole = (tmp_path / "m.gguf").read_bytes()
    header = whole.index(b"output_norm.weight") + len(b"output_norm.weight")
    for size in range(4, header, 997):
        (tmp_path / "torn.gguf").write_bytes(whole[:size])
        with pytest.raises(ModelError, match="cannot be read as GGUF"):
            configuration_of(tmp_path / "torn.gguf")


def test_what_a_header_says_is_what_the_whole_file_says(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for sort in (GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0):
        write_gguf(tmp_path / "m.gguf", tokenizer.inner, sort)
        assert configuration_of(tmp_path / "m.gguf") == open_gguf(tmp_path / "m.gguf").config()


def test_a_checkpoint_of_several_files_is_read_through_its_index(tmp_path: Path) -> None:
    names = {"a": "one.safetensors", "b": "two.safetensors"}
    for name, file in names.items():
        values = np.full((2, 3), ord(name), dtype=np.float32)
        write_checkpoint(tmp_path / file, [(name, "F32", (2, 3))], [(name, values)])
    with pytest.raises(ModelError, match=r"has 2 files .* and no index: 1 is expected"):
        list(read_checkpoint(tmp_path))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    done: list[int] = []
    read = {name: float(tensor[1, 2]) for name, tensor in read_checkpoint(tmp_path, lambda d, _: done.append(d))}
    assert read == {"a": ord("a"), "b": ord("b")}
    assert done == [24, 48]
    (tmp_path / "two.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        list(read_checkpoint(tmp_path))
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(ModelError, match="lacks 1 of 2 files of weights, two"):
        list(read_checkpoint(tmp_path))


@pytest.mark.story
@pytest.mark.parametrize("size", [2**63 - 1, 2**63, 2**64 - 1])
def test_a_gguf_file_with_a_length_beyond_all_memory_is_refused_in_a_sentence(tmp_path: Path, size: int) -> None:
    file = tmp_path / "huge.gguf"
    head = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (2).to_bytes(8, "little")
    file.write_bytes(head + size.to_bytes(8, "little") + b"general.architecture" + bytes(64))
    for read in (read_header, open_gguf):
        with pytest.raises(ModelError, match="cannot be read as GGUF"):
            read(file)
