"""These tests need a GPU and are skipped without one; on a CPU the same runner is tested in tests/torch/kernels."""

import torch

torch.backends.cudnn.allow_tf32 = False
