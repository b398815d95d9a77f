"""Finds the magics of GPU code anywhere in a source, in bounded memory."""

from __future__ import annotations

import enum
import struct

from assembler.verify.gfx import bundle
from assembler.verify.gfx.elf import EM_AMDGPU
from assembler.verify.gfx.source import Source

CHUNK = 4 << 20
OVERLAP = 64
"""A magic and the header fields that are looked at together take fewer bytes than this."""
ELF64 = b"\x7fELF\x02\x01\x01"
ZEROS = bytes(1 << 16)


class Magic(enum.Enum):
    """What may start where a magic was found."""

    BUNDLE = "bundle"
    COMPRESSED = "compressed bundle"
    ELF = "AMDGPU ELF"


def magic_at(source: Source, at: int) -> Magic | None:
    """Say which magic stands at a position."""
    return _classify(source.read_at(at, 32), 0)


def _classify(data: bytes, at: int) -> Magic | None:
    if data.startswith(bundle.MAGIC, at):
        return Magic.BUNDLE
    if data.startswith(bundle.COMPRESSED_MAGIC, at) and len(data) >= at + 8:
        version, method = struct.unpack_from("<HH", data, at + 4)
        if version in bundle.HEADERS and method in bundle.METHODS:
            return Magic.COMPRESSED
    if data.startswith(ELF64, at) and len(data) >= at + 20:
        (machine,) = struct.unpack_from("<H", data, at + 18)
        if machine == EM_AMDGPU:
            return Magic.ELF
    return None


class Scanner:
    """Finds magics from any position on; made for positions that mostly grow.

    Each chunk is searched once for every magic, with the C library's search behind ``bytes.find``.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._base = 0
        self._end = -1
        self._hits: list[tuple[int, Magic]] = []
        self._next = 0

    def find(self, start: int) -> tuple[int, Magic] | None:
        """Return position and kind of the first magic at or after ``start``."""
        position = start
        while position < self._source.size:
            if not self._base <= position < self._end:
                self._load(position)
            while self._next < len(self._hits):
                hit = self._hits[self._next]
                if hit[0] >= position:
                    return hit
                self._next += 1
            position = self._end
        return None

    def _load(self, base: int) -> None:
        data = self._source.read_at(base, CHUNK + OVERLAP)
        self._base = base
        self._end = base + max(1, min(len(data), CHUNK))
        hits: list[tuple[int, Magic]] = []
        for needle in (bundle.MAGIC, bundle.COMPRESSED_MAGIC, ELF64):
            at = data.find(needle)
            while 0 <= at < CHUNK:
                if (kind := _classify(data, at)) is not None:
                    hits.append((base + at, kind))
                at = data.find(needle, at + 1)
        self._hits = sorted(hits, key=lambda hit: hit[0])
        self._next = 0


def skip_zeros(source: Source, start: int) -> int:
    """Return the first position from ``start`` on whose byte is not zero, or the source's end."""
    position = start
    while position < source.size:
        data = source.read_at(position, len(ZEROS))
        if data != ZEROS[: len(data)]:
            return position + len(data) - len(data.lstrip(b"\0"))
        position += len(data)
    return source.size
