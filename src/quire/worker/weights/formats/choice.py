"""The readers of a checkpoint folder's packed parameters, by the format that its configuration names."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quire.core.errors import ModelError
from quire.models.quantisation import Format, Section, format_of, groups_of, section_in
from quire.worker.weights.formats import awq, compressed, floats, fp4, gptq, quire
from quire.worker.weights.formats.stored import Readers, Stored, open_stored

CODES = frozenset({"F8_E4M3", "F8_E5M2", "I8", "U8", "I32"})
"""Types that no plain weight has."""
WEIGHTS = ("weight", "_proj")
"""Endings of parameters that may be quantised."""
_LOG = logging.getLogger("quire.weights")


@contextmanager
def packed_readers(folder: Path) -> Iterator[Readers | None]:
    """None: the checkpoint is not quantised."""
    section = section_in(folder)
    if section is None:
        yield None
        return
    sort = format_of(section)
    with open_stored(folder) as stored:
        readers = find(sort, stored, section)
        _require_all_read(stored, readers)
        if _quantises_activations(section):
            _LOG.warning("weights: %s is made for activations in few bits too: they are kept as they are", folder.name)
        yield readers


def find(sort: Format, stored: Stored, section: Section) -> Readers:
    match sort:
        case Format.QUIRE:
            return quire.find(stored)
        case Format.AWQ:
            return awq.find(stored)
        case Format.GPTQ:
            return gptq.find(stored, section)
        case Format.MXFP4:
            return fp4.find_blocks(stored)
        case Format.FP8:
            return floats.find(stored, section)
        case Format.MODELOPT:
            return floats.find(stored, section) | fp4.find(stored)
        case Format.COMPRESSED_TENSORS:
            return floats.find(stored, section) | compressed.find(stored) | fp4.find(stored)


def _require_all_read(stored: Stored, readers: Readers) -> None:
    """A tensor of codes that nothing here reads would be taken for the weight itself."""
    named = (name for name in stored.names if name.endswith(WEIGHTS) and not name.endswith(".qweight"))
    unread = [name for name in named if name not in readers and stored.dtype(name) in CODES]
    if unread:
        raise ModelError(f"{stored.where(unread[0])} is in {stored.dtype(unread[0])}, and no scales say what it means")
    if scaled := next((name for name in stored.names if name.endswith("pre_quant_scale")), None):
        raise ModelError(f"{stored.where(scaled)} scales the inputs of a layer, which is not read")


def _quantises_activations(section: Section) -> bool:
    """fp8 and int8 products are made by the checkpoint's author with both sides in 8 bits."""
    groups = any(group.get("input_activations") for group in groups_of(section))
    algorithm = str(section.get("quant_algo", "")).upper() in ("FP8", "NVFP4", "MIXED_PRECISION")
    return groups or algorithm or section.get("activation_scheme") is not None
