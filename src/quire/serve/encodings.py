"""Request bodies that a client has compressed. They are decompressed piece by piece, so that a small body that becomes
a huge one ends at the limit."""

from __future__ import annotations

import zlib

from quire.serve.errors import ApiError

WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""By content encoding: which header zlib expects."""
PLAIN = ("", "identity")
ACCEPTED = "gzip, deflate"


class BodyDecoder:
    """Decodes one body, and counts its bytes after decompression."""

    def __init__(self, encoding: str, most_bytes: int) -> None:
        """`encoding`: the header's value; raises if it is not supported."""
        name = encoding.strip().lower()
        if name not in (*PLAIN, *WINDOW_BITS):
            message = f"content-encoding {encoding[:32]!r} is not supported: send gzip, deflate, or the plain body"
            raise ApiError(415, message, "unsupported_encoding", accept_encoding=ACCEPTED)
        self._inflate = None if name in PLAIN else zlib.decompressobj(WINDOW_BITS[name])
        self._most, self._decoded_bytes, self._has_begun = most_bytes, 0, False

    def feed(self, piece: bytes) -> bytes:
        """The piece, decoded; raises as soon as the body is beyond its limit."""
        self._has_begun = self._has_begun or bool(piece)
        decoded = piece if self._inflate is None else self._inflated(self._inflate, piece)
        self._decoded_bytes += len(decoded)
        if self._decoded_bytes > self._most:
            raise too_large(self._decoded_bytes, self._most)
        return decoded

    def _inflated(self, inflate: zlib._Decompress, piece: bytes) -> bytes:
        try:
            decoded = inflate.decompress(piece, self._most - self._decoded_bytes + 1)
        except zlib.error:
            raise _broken("it is not in the format that content-encoding names") from None
        if inflate.unused_data:
            raise _broken("there are bytes after its end")
        return decoded

    def finish(self) -> None:
        """Raises if the compressed body is not complete."""
        if self._inflate is not None and self._has_begun and not self._inflate.eof:
            raise _broken("it ends too early")


def too_large(size: int, most: int) -> ApiError:
    return ApiError(413, f"the body has at least {size:,} bytes, {most:,} may be: send less", "body_too_large")


def _broken(why: str) -> ApiError:
    return ApiError(400, f"the body cannot be decompressed, {why}: compress it again", "invalid_encoding")
