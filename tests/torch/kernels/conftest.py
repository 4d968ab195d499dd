"""Kernels run under Triton's interpreter where there is no GPU: it must be told before the first kernel is defined."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton", reason="no triton: pip install 'quire[gpu]'")
