"""Files of checkpoints that a stranger made: whatever they say, they are refused in a sentence, and no other file is
read for them."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ModelError
from quire.models.checkpoint import INDEX
from quire.models.stored_bits import read_header
from quire.text.gguf import require_known
from quire.worker.weights.safetensors import checkpoint_files, read_checkpoint
from quire.worker.weights.slices import StoredTensors

NESTED = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def entry(**change: Any) -> bytes:
    return json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **change}}).encode()


def write(folder: Path, header: bytes, size: int | None = None, data: bytes = bytes(16)) -> Path:
    """`size`: of the header, as the file states it."""
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header) if size is None else size) + header + data)
    return file


def read_slices(folder: Path) -> None:
    with StoredTensors(folder) as stored:
        for name in stored.names():
            stored[name][...]


def test_a_file_that_is_as_it_says_is_read(tmp_path: Path) -> None:
    """So that the others are refused for what is wrong about them."""
    file = write(tmp_path, entry())
    assert read_header(file)["a"].bytes == 16
    read_slices(tmp_path)


@pytest.mark.story
@pytest.mark.parametrize(
    "header",
    [
        *(NESTED, b"[]", b"null", b'{"a": null}'),
        *(entry(shape=shape) for shape in ([-4], [1 << 40] * 2, [4.5])),
        *(entry(data_offsets=offsets) for offsets in ([-100, -84], [1 << 70, (1 << 70) + 16], [0.5, 16], [8, 24])),
    ],
    ids=["nested", "a list", "null", "no entry", "negative size", "huge", "half", "before", "far", "between", "beyond"],
)
def test_a_header_that_lies_is_refused_before_a_tensor_is_read(tmp_path: Path, header: bytes) -> None:
    """A process that reads its share of the weights ended with a traceback, or asked for memory without end. Red: a
    size or an offset that is used unchecked."""
    write(tmp_path, header)
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        read_slices(tmp_path)


@pytest.mark.story
def test_tensors_that_overlap_are_refused(tmp_path: Path) -> None:
    first, second = (json.loads(entry(data_offsets=[begin, begin + 16]))["a"] for begin in (0, 8))
    write(tmp_path, json.dumps({"a": first, "b": second}).encode(), data=bytes(24))
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        read_slices(tmp_path)


@pytest.mark.story
@pytest.mark.parametrize("size", [200 << 20, 50 << 30, 2**63, 2**64 - 1])
def test_a_header_longer_than_any_is_refused(tmp_path: Path, size: int) -> None:
    file = write(tmp_path, b"{}", size)
    for read in (read_header, lambda file: read_slices(file.parent)):
        with pytest.raises(ModelError, match="cannot be read as safetensors"):
            read(file)


@pytest.mark.story
@pytest.mark.parametrize(
    "header",
    [NESTED, *(entry(shape=shape) for shape in ([-4], [4.5], "4", [1] * 1000, [1 << 80], [math.inf]))],
    ids=["nested", "negative", "half", "text", "dimensions", "huge", "infinite"],
)
def test_a_plan_counts_no_shapes_that_no_tensor_has(tmp_path: Path, header: bytes) -> None:
    """2,000 sizes of 4,000 digits each were multiplied for minutes; others were a traceback."""
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        read_header(write(tmp_path, header))


@pytest.mark.story
@pytest.mark.parametrize("named", ["../other/model.safetensors", "/etc/passwd", "model.bin", 5])
def test_an_index_names_files_next_to_it_alone(tmp_path: Path, named: Any) -> None:
    """One from a hub was checked already, one of a folder was not."""
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": named}}))
    with pytest.raises(ModelError, match="which is no file of safetensors next to it"):
        checkpoint_files(tmp_path)


@pytest.mark.story
@pytest.mark.parametrize("content", ["[" * 100_000, "{}", "[1]", '{"weight_map": 5}'])
def test_an_index_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(ModelError, match="is not the index of a checkpoint"):
        list(read_checkpoint(tmp_path))


@pytest.mark.story
def test_the_cut_of_a_gguf_tokenizer_may_be_of_any_type() -> None:
    """A list was a traceback."""
    with pytest.raises(ModelError, match="the file's tokenizer is gpt2"):
        require_known({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": [1, 2, 3]})
