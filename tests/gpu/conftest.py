"""These tests need a GPU and are skipped without one. On a CPU the same runner is tested in tests/torch/kernels."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

torch.backends.cudnn.allow_tf32 = False
