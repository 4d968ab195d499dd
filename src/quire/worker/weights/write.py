"""A file of safetensors, written one tensor at a time. Needs no torch.

8 bytes          length of the header
header           JSON: name → dtype, shape, [from, to) of its bytes in the data
data             the tensors, one after another
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

Advance = Callable[[int, int], None]
"""Called with the bytes done and the total."""


def write_checkpoint(
    file: Path,
    parameters: Iterable[tuple[str, tuple[int, ...]]],
    values: Iterable[tuple[str, npt.NDArray[np.float32]]],
    advance: Advance | None = None,
) -> None:
    """Writes one file of 32-bit floats. `parameters` has the names and shapes of `values`, in the same order."""
    spans: dict[str, object] = {"__metadata__": {"format": "pt"}}
    total = 0
    for name, shape in parameters:
        spans[name] = _span(shape, total)
        total += 4 * math.prod(shape)
    header = json.dumps(spans).encode()
    header += b" " * (-len(header) % 8)
    with file.open("wb") as target:
        target.write(len(header).to_bytes(8, "little") + header)
        done = 0
        for name, value in values:
            assert spans[name] == _span(value.shape, done), name
            target.write(np.ascontiguousarray(value).data)
            done += value.nbytes
            if advance:
                advance(done, total)
    assert done == total


def _span(shape: tuple[int, ...], start: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [start, start + 4 * math.prod(shape)]}
