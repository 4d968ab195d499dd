"""A processor that does not do what it announces is found out before it ends the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.core.errors import InputError
from quire.worker.support.processor import LIMIT, require_products

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)  # {dtype}"


@pytest.fixture
def amx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(LIMIT, raising=False)
    processor = tmp_path / "cpuinfo"
    processor.write_text("flags : avx512f amx_bf16 amx_tile\n")
    return processor


@pytest.mark.story
def test_a_product_that_would_kill_the_process_is_refused_with_the_way_out(amx: Path) -> None:
    with pytest.raises(InputError, match="bfloat16 ends with signal 4: set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"):
        require_products("bfloat16", DIES, amx)


def test_what_works_passes(amx: Path) -> None:
    require_products("bfloat16", "assert '{dtype}' == 'bfloat16'", amx)


def test_nobody_asks_where_nothing_is_announced(amx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fp32 needs no AMX; a processor without it is believed; whoever set the limit knows."""
    require_products("float32", DIES, amx)
    require_products("bfloat16", DIES, amx.with_name("none"))
    amx.write_text("flags : avx2\n")
    require_products("bfloat16", DIES, amx)
    amx.write_text("flags : amx_tile\n")
    monkeypatch.setenv(LIMIT, "AVX512_CORE_BF16")
    require_products("bfloat16", DIES, amx)
