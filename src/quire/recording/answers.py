"""Answers of a tier in a recording: [number, is done, reason, has less, is staged, is over]."""

from __future__ import annotations

from quire.core.tier import (
    Answer,
    TransferDone,
    TransferFailed,
    TransferIncomplete,
    TransferLanded,
    TransferStaged,
)

Fields = tuple[int, bool, str, bool, bool, bool]


def encode_answer(answer: Answer) -> Fields:
    match answer:
        case TransferDone(number):
            return number, True, "", False, True, True
        case TransferStaged(number):
            return number, True, "", False, True, False
        case TransferLanded(number):
            return number, True, "", False, False, True
        case TransferFailed(number, reason):
            return number, False, reason, False, True, True
        case TransferIncomplete(number, reason):
            return number, False, reason, True, True, True


def decode_answer(fields: Fields) -> Answer:
    number, is_done, reason, has_less, is_staged, is_over = fields
    if not is_done:
        return TransferIncomplete(number, reason) if has_less else TransferFailed(number, reason)
    if not is_over:
        return TransferStaged(number)
    return TransferDone(number) if is_staged else TransferLanded(number)
