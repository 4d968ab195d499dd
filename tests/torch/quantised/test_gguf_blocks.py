"""Blocks of every type that GGUF files have mean the same numbers after they are packed."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from gguf_models import meaning
from quire.text.gguf import _SPLITS
from quire.worker.weights import gguf_blocks
from quire.worker.weights.gguf_blocks import PACKINGS, Packing, Stored, common, pack, tensor_bytes
from quire.worker.weights.gguf_config import CONFIGS
from quire.worker.weights.packed import Codes, PackedWeight

Q = GGMLQuantizationType
DOCS = Path(__file__).parents[3] / "docs"
PLACES = {
    Q.Q4_0: (0,), Q.Q4_1: (0, 2), Q.Q5_0: (0,), Q.Q5_1: (0, 2), Q.Q8_0: (0,), Q.Q2_K: (80, 82), Q.Q3_K: (108,),
    Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,), Q.MXFP4: (),
}  # fmt: skip
"""Where a block has 16-bit floats."""
BITS = {
    Q.Q4_0: 5, Q.Q4_1: 5, Q.Q5_0: 8.5, Q.Q5_1: 9, Q.Q8_0: 8.5, Q.Q2_K: 8, Q.Q3_K: 8, Q.Q4_K: 6, Q.Q5_K: 10, Q.Q6_K: 10,
    Q.MXFP4: 4.5,
}  # fmt: skip


def random_blocks(sort: Q, shape: tuple[int, ...], largest: float = 2000.0) -> Any:
    """Any bytes at all, with scales of every size that does not overflow, subnormal ones included."""
    numbers, size = GGML_QUANT_SIZES[sort]
    random = np.random.default_rng(int(sort))
    blocks = random.integers(0, 256, (np.prod(shape) // numbers, size), dtype=np.uint8)
    for place in PLACES[sort]:
        scales = random.choice([-1, 1], (len(blocks), 1)) * np.exp(
            random.uniform(-16, np.log(largest), (len(blocks), 1))
        )
        blocks[:, place : place + 2] = scales.astype(np.float16).view(np.uint8)
    if sort is Q.MXFP4:
        blocks[:, 0] = np.concatenate((np.arange(3), random.integers(0, 250, len(blocks) - 3)))
    return blocks.reshape(*shape[:-1], -1)


def weight_of(parts: dict[str, Stored], packing: Packing) -> PackedWeight:
    tensors = {name: torch.from_numpy(part.values) for name, part in parts.items()}
    if packing.scale_dtype == "BF16":
        tensors["scales"] = tensors["scales"].view(torch.bfloat16)
    codes = tensors[packing.codes]
    return PackedWeight(
        "w", Codes(packing.codes), codes, tensors["scales"], tensors.get("minimums"), columns=packing.columns
    )


@pytest.mark.parametrize("sort", PACKINGS, ids=lambda sort: sort.name)
@pytest.mark.parametrize("shape", [(6, 512), (3, 4, 256), (1, 768)])
def test_packed_blocks_mean_exactly_what_gguf_says(
    sort: Q, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in pieces, of which the last is shorter."""
    monkeypatch.setattr(gguf_blocks, "CHUNK_NUMBERS", 1280)
    data, packing = random_blocks(sort, shape), PACKINGS[sort]
    assert data.nbytes == tensor_bytes(sort, shape)
    packed = weight_of(pack(data, sort, shape, packing), packing)
    assert packed.shape == shape
    assert np.array_equal(packed.dequantised().numpy(), meaning(data, sort))
    assert 8 * packed.bytes == packing.bits * np.prod(shape)
    assert packing.bits == Fraction(BITS[sort])


@pytest.mark.parametrize("sorts", [(Q.Q4_K, Q.Q6_K), (Q.Q4_0, Q.Q8_0), (Q.Q2_K, Q.Q4_1), (Q.Q8_0, Q.Q5_0)], ids=str)
def test_types_that_are_joined_get_one_form_and_lose_nothing(sorts: tuple[Q, ...]) -> None:
    shape, form = (4, 256), common([PACKINGS[sort] for sort in sorts])
    for sort in sorts:
        data = random_blocks(sort, shape)
        assert np.array_equal(weight_of(pack(data, sort, shape, form), form).dequantised().numpy(), meaning(data, sort))


def test_what_cannot_be_one_form_is_refused() -> None:
    with pytest.raises(ValueError, match="MXFP4 and another type"):
        common([PACKINGS[Q.MXFP4], PACKINGS[Q.Q8_0]])
    with pytest.raises(ValueError, match="rows of 100 numbers are not a multiple of Q8_0's 32"):
        tensor_bytes(Q.Q8_0, (2, 100))


def test_the_page_on_models_lists_what_is_read() -> None:
    """Architectures, types of tensors and their bits; the page on text the ways to cut it."""
    page = (DOCS / "models.md").read_text()
    section = page[page.index("## GGUF files") : page.index("## What is read")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| ")]
    listed = {name: float(row[2]) for row in rows if row[2].replace(".", "").isdigit() for name in row[0].split(", ")}
    assert listed == {sort.name: float(packing.bits) for sort, packing in PACKINGS.items()}
    named = [name for row in rows for name in re.findall(r"^`.*`$", row[0]) for name in re.findall("`([^`]+)`", name)]
    assert sorted({*named} - {"general.architecture"}) == sorted(CONFIGS)
    text = (DOCS / "text.md").read_text()
    assert not [name for name in _SPLITS if f"`{name}`" not in text]
