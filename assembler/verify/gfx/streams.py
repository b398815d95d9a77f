"""Decompresses streams of untrusted content: bounded memory, and a cut-off end is an EOFError.

Formats: xz, and zstd (RFC 8878), whose own readers in Python take a cut-off frame for a whole one.
"""

from __future__ import annotations

import lzma
from typing import IO, Any

import zstandard

MAX_WINDOW = 128 << 20
"""The largest window (bytes) that zstd's own decoders accept by default."""
MAX_XZ = 96 << 20
PIECE = 1024
"""Compressed bytes given to zstd at once: four give 128 KiB at most, these give 32 MiB."""


class ZstdStream:
    """One zstd frame after another, until the data ends."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed = packed
        self._decoder = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        self._frame: Any = None
        self._input = b""
        self._output = b""
        self._at = 0

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes; nothing at the end."""
        while self._at >= len(self._output):
            if not self._input:
                self._input = self._packed.read(1 << 16)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("zstd data is cut off")
                return b""
            self._decode()
        data = self._output[self._at : self._at + size]
        self._at += len(data)
        return data

    def _decode(self) -> None:
        if self._frame is None:
            self._frame = self._decoder.decompressobj()
        self._output = self._frame.decompress(self._input[:PIECE])
        self._at = 0
        self._input = self._input[PIECE:]
        if self._frame.eof:
            self._input = self._frame.unused_data + self._input
            self._frame = None


class XzStream:
    """An xz stream, which lzma.LZMAFile would read without a limit to its memory."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed = packed
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ)

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes; nothing at the end."""
        while not self._stream.eof:
            data = self._packed.read(1 << 16) if self._stream.needs_input else b""
            if self._stream.needs_input and not data:
                raise EOFError("xz data is cut off")
            if piece := self._stream.decompress(data, size):
                return piece
        return b""
