"""Continuous integration tries the same examples every time, so that a red run can be repeated. Where there is no GPU,
kernels run under Triton's interpreter: it must be told before anything, torch too, looks for Triton."""

from __future__ import annotations

import os
import shutil

from hypothesis import settings

if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
