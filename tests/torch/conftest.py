"""Tiny models gain nothing from several threads, and lose much where cores are shared."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
