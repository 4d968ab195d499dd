"""Every format of quantised checkpoint, on every shape of model: kept packed, and computed as its numbers mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantised_folders import SHAPES, compare, packed_modules, write_pair
from quantised_formats import FORMATS


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("sort", FORMATS)
def test_a_format_computes_what_its_dequantised_weights_do(sort: str, name: str, tmp_path: Path) -> None:
    case = FORMATS[sort]
    if case.has_experts and name != "gpt_oss":
        pytest.skip("packs parameters of gpt_oss alone")
    model = compare(write_pair(tmp_path, name, case.of_matrices(), case.section))
    assert len(list(packed_modules(model))) >= len(model.model.layers) * 2
