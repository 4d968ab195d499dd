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
from typing import Any

import numpy as np
import numpy.typing as npt

Advance = Callable[[int, int], None]
"""Called with the bytes done and the total."""
BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "I8": 1}
"""Of a number, by the name of its type."""


def write_checkpoint(
    file: Path,
    parameters: Iterable[tuple[str, str, tuple[int, ...]]],
    values: Iterable[tuple[str, npt.NDArray[Any]]],
    advance: Advance | None = None,
) -> None:
    """Writes one file. `parameters` has the names, types and shapes of `values`, in the same order."""
    spans: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for name, dtype, shape in parameters:
        end = total + BYTES[dtype] * math.prod(shape)
        spans[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [total, end]}
        total = end
    header = json.dumps(spans).encode()
    header += b" " * (-len(header) % 8)
    with file.open("wb") as target:
        target.write(len(header).to_bytes(8, "little") + header)
        done = 0
        for name, value in values:
            assert spans[name]["shape"] == list(value.shape), name
            assert spans[name]["data_offsets"] == [done, done + value.nbytes], name
            target.write(np.ascontiguousarray(value).data)
            done += value.nbytes
            if advance:
                advance(done, total)
    assert done == total
