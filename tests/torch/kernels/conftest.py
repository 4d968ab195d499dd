"""Kernels are tested where Triton is installed, on a GPU or under its interpreter."""

import os

import pytest

pytest.importorskip("triton", reason="no triton: pip install '.[gpu]'")
if os.environ.get("TRITON_INTERPRET") == "1":
    import quick_interpreter

    quick_interpreter.install()
