"""Kernels of packed weights pass Triton's compiler and ptxas for a Hopper GPU, on a machine without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packed_case import FORMS

from examples import rest_in_soak

KIT = Path(__file__).parents[2] / "kit"
FIRST = ["int4", "fp8"]


@pytest.mark.parametrize("form", rest_in_soak(FORMS, FIRST))
def test_products_and_experts_compile(form: str, tmp_path: Path) -> None:
    """For all sorts of numbers of tokens. Red: what only the interpreter takes, such as a loop over a form's field."""
    folders = [str(KIT), str(Path(__file__).parent)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, str(KIT / "compile_for_hopper.py"), form]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = set(done.stdout.split())
    assert {"multiply_part", "multiply_experts", "sort_pairs"} <= compiled
    assert compiled & {"multiply_few", "multiply_groups"}
    assert ("round_rows" in compiled) == (form == "fp8")
