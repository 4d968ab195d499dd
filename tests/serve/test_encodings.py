"""Compressed bodies: decoded in pieces, within the limit, or refused."""

from __future__ import annotations

import gzip
import zlib

import pytest

from quire.serve.encodings import BodyDecoder
from quire.serve.errors import ApiError

TEXT = b'{"model": "tiny"}' * 40
ZIPPED = gzip.compress(TEXT, mtime=0)  # the same in every process
WRITTEN = {"gzip": ZIPPED, "X-GZip": ZIPPED, "deflate": zlib.compress(TEXT), "identity": TEXT}


def decoded(encoding: str, body: bytes, most: int = 10_000, piece: int = 7) -> bytes:
    decoder = BodyDecoder(encoding, most)
    found = b"".join(decoder.feed(body[place : place + piece]) for place in range(0, len(body), piece))
    decoder.finish()
    return found


@pytest.mark.parametrize("encoding", WRITTEN)
def test_a_body_is_the_same_however_it_was_written_and_cut(encoding: str) -> None:
    """Up to the limit, and not one byte beyond it."""
    for piece in (1, 7, 10_000):
        assert decoded(encoding, WRITTEN[encoding], len(TEXT), piece) == TEXT
        with pytest.raises(ApiError) as refused:
            decoded(encoding, WRITTEN[encoding], len(TEXT) - 1, piece)
        assert (refused.value.status, refused.value.code) == (413, "body_too_large")


def test_a_bomb_is_decompressed_to_the_limit_alone() -> None:
    """16 MiB in 16 KiB: the message says how far it was read."""
    with pytest.raises(ApiError, match="at least 1,001 bytes, 1,000 may be"):
        decoded("gzip", gzip.compress(bytes(1 << 24)), 1000, 1 << 20)


@pytest.mark.parametrize(
    ("encoding", "body", "code", "words"),
    [
        ("br", b"x", "unsupported_encoding", "content-encoding 'br' is not supported: send gzip, deflate"),
        ("gzip, gzip", b"x", "unsupported_encoding", "not supported"),
        ("gzip", TEXT, "invalid_encoding", "it is not in the format"),
        ("deflate", WRITTEN["gzip"], "invalid_encoding", "it is not in the format"),
        ("gzip", WRITTEN["gzip"][:-9], "invalid_encoding", "it ends too early"),
        ("gzip", WRITTEN["gzip"] + b"more", "invalid_encoding", "there are bytes after its end"),
    ],
)
def test_what_cannot_be_decoded_is_refused_in_one_sentence(encoding: str, body: bytes, code: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as refused:
        decoded(encoding, body)
    assert refused.value.code == code
    assert (refused.value.headers() == {"accept-encoding": "gzip, deflate"}) == (refused.value.status == 415)


def test_a_call_without_a_body_may_name_an_encoding() -> None:
    assert decoded("gzip", b"") == b""
