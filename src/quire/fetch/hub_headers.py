"""The beginnings of a hub's files of weights: what a plan needs of gigabytes.

file.gguf          metadata and lists of tokens, then weights
file.safetensors   8 bytes, a header of that length with name, type and shape of each tensor, then weights
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import get_session, hf_hub_url
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from quire.core.errors import ModelError
from quire.core.version import __version__
from quire.fetch.hub_errors import hub_errors
from quire.fetch.hub_files import HubFile
from quire.models.stored_bits import LARGEST_HEADER, Tensor, header_bytes, parse_header

if TYPE_CHECKING:
    from quire.fetch.hub import HubModel

SECONDS = 10.0
"""Until a hub that says nothing counts as unreachable."""
CLIENT: dict[str, Any] = {"library_name": "quire", "library_version": __version__}
GGUF_BYTES = (8 << 20, 32 << 20, 128 << 20)
"""Pieces to try, the smallest first."""
TENSORS_BYTES = 100_000
"""Most headers of safetensors are shorter."""
AT_ONCE = 8
"""Files whose headers are read at the same time."""


def gguf_header(model: HubModel, file: HubFile, target: Path) -> Path:
    """The beginning of a file, with its complete header."""
    from quire.worker.weights.gguf_header import read_header

    problem = ModelError(f"{file.name} cannot be read as GGUF")
    for size in GGUF_BYTES:
        target.write_bytes(_beginning(model, file.name, size))
        try:
            read_header(target)
            return target
        except ModelError as error:
            problem = error
        if file.bytes is not None and size >= file.bytes:
            break
    raise ModelError(str(problem).replace(str(target), file.name))


@cache
def tensors_of(model: HubModel) -> dict[str, Tensor]:
    """All tensors of a model's files of safetensors, by name. Kept, because a start asks several times."""
    names = [file.name for file in model.files if file.name.endswith(".safetensors")]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        headers: Iterable[dict[str, Tensor]] = threads.map(lambda name: _tensors(model, name), names)
        return {name: tensor for header in headers for name, tensor in header.items()}


def _tensors(model: HubModel, name: str) -> dict[str, Tensor]:
    data = _beginning(model, name, TENSORS_BYTES)
    size = header_bytes(data)
    if len(data) < 8 + size <= LARGEST_HEADER:
        data = _beginning(model, name, 8 + size)
    return parse_header(data, f"{model.hub_id}: {name}")


def _beginning(model: HubModel, name: str, size: int) -> bytes:
    """The first bytes of a file, also from a server that ignores ranges."""
    url = hf_hub_url(model.name, name, revision=model.commit)
    headers = build_hf_headers(**CLIENT) | {"Range": f"bytes=0-{size - 1}", "Accept-Encoding": "identity"}
    data = bytearray()
    with hub_errors(model.hub_id):
        with get_session().stream("GET", url, headers=headers, timeout=6 * SECONDS, follow_redirects=True) as answer:
            hf_raise_for_status(answer)
            for piece in answer.iter_bytes():
                data += piece
                if len(data) >= size:
                    break
        return bytes(data[:size])
