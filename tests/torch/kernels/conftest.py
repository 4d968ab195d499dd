"""Kernels are tested where Triton is installed, on a GPU or under its interpreter."""

import pytest

pytest.importorskip("triton", reason="no triton: pip install '.[gpu]'")
