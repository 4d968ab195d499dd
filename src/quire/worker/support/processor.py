"""Checks, before weights are read, that products in 16 bits do not end the process.

Some virtual machines announce AMX and fail at its first instruction. oneDNN trusts the announcement, so the first
product in bf16 or fp16 is an illegal instruction. A child process tries one.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from quire.core.errors import InputError
from quire.options.child import python

LIMIT = "ONEDNN_MAX_CPU_ISA"
"""The instructions that oneDNN may use; read when torch is loaded."""
PRODUCT = "import torch; one = torch.ones(64, 64, dtype=torch.{dtype}); torch.nn.functional.linear(one, one)"


def require_products(dtype: str, product: str = PRODUCT, processor: Path = Path("/proc/cpuinfo")) -> None:
    """Raises InputError where a product in `dtype`, by torch's name, would kill the process."""
    if dtype == "float32" or LIMIT in os.environ or not _announces_amx(processor):
        return
    child = subprocess.run(python("-c", product.format(dtype=dtype)), capture_output=True, check=False)
    if child.returncode < 0:
        raise InputError(
            f"this processor announces AMX, but a product in {dtype} ends with signal {-child.returncode}: set "
            f"{LIMIT}=AVX512_CORE_BF16 before the start, or take fp32"
        )


def _announces_amx(processor: Path) -> bool:
    try:
        return "amx_tile" in processor.read_text()
    except OSError:
        return False
