"""Reads clang offload bundles, plain and compressed.

Source: the "Clang Offload Bundler" document (ClangOffloadBundler): "Bundled Binary File Layout",
"Bundle Entry ID" and "Compression and Decompression". Plain: the magic, u64 number of entries, then
for each u64 offset (from the bundle's start), u64 size, u64 length of the entry ID, the ID.
Compressed: ``CCOB``, u16 version, u16 method (0 zlib, 1 zstd), then u32 uncompressed size (version
1), u32 total and uncompressed size (2) or the same as u64 (3), u64 lower half of the uncompressed
bytes' MD5, the compressed plain bundle. Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import zstandard

from assembler.verify.gfx.flags import processors
from assembler.verify.gfx.model import Feature, MalformedError
from assembler.verify.gfx.source import CHUNK, UNPACKED_LIMIT, Source, spool
from assembler.verify.gfx.streams import MAX_WINDOW

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED_MAGIC = b"CCOB"
METHODS = {0: "zlib", 1: "zstd"}
HEADERS = {1: struct.Struct("<IQ"), 2: struct.Struct("<IIQ"), 3: struct.Struct("<QQQ")}
MAX_ENTRIES = 4096
MAX_ID = 1024
ENTRY_ID = re.compile(r"[a-z][a-z0-9]*-[\x21-\x7e]+")
_TABLE = struct.Struct("<QQQ")


class NotABundleError(MalformedError):
    """The magic stands there by chance or as a string constant: no entry table follows."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: its ID, and ``size`` bytes at ``offset`` from the bundle's start."""

    id: str
    offset: int
    size: int

    @property
    def processor(self) -> str | None:
        """The processor that the ID names, features left off; None for host entries."""
        found = re.search(r"(?:^|-)((?:gfx|amdgcnspirv)[^:]*)", self.id)
        return found.group(1) if found and not self.is_host else None

    def feature(self, name: str) -> Feature:
        """What the target ID says of a feature; nothing said is any where the processor has it."""
        for sign, state in (("+", Feature.ON), ("-", Feature.OFF)):
            if f":{name}{sign}" in self.id:
                return state
        rows = processors().values()
        supported = any(getattr(row, name) for row in rows if row.name == self.processor)
        return Feature.ANY if supported else Feature.UNSUPPORTED

    @property
    def is_amd(self) -> bool:
        """Whether the entry is for an AMD GPU: not the host's, SYCL's or another vendor's."""
        return not self.is_host and (self.processor is not None or "amdgcn" in self.id)

    @property
    def is_host(self) -> bool:
        """Whether the entry is the host's dummy."""
        return self.id.startswith("host-")


@dataclass(frozen=True, slots=True)
class Bundle:
    """An entry table; ``size`` is where the last entry ends, from the bundle's start."""

    entries: tuple[Entry, ...]
    size: int


@dataclass(frozen=True, slots=True)
class CompressedHeader:
    """A CCOB header of ``size`` bytes; ``total`` counts header and data, None in version 1."""

    version: int
    method: str
    size: int
    total: int | None
    uncompressed: int
    digest: int


def read_bundle(source: Source, at: int) -> Bundle:
    """Read the entry table of the bundle at ``at``.

    NotABundleError when no entry table follows the magic; MalformedError when there is one that
    does not fit the bytes (a truncated or altered bundle).
    """
    if source.read_at(at, len(MAGIC)) != MAGIC:
        raise NotABundleError(at, "no bundle magic")
    position = at + len(MAGIC)
    head = source.read_at(position, 8)
    if len(head) != 8:
        raise NotABundleError(position, "the data ends after the bundle magic")
    (count,) = struct.unpack("<Q", head)
    if not 1 <= count <= MAX_ENTRIES:
        raise NotABundleError(position, f"a bundle of {count} entries")
    position += 8
    entries: list[Entry] = []
    for number in range(count):
        wrong = MalformedError if entries else NotABundleError
        row = source.read_at(position, _TABLE.size)
        if len(row) != _TABLE.size:
            raise wrong(position, f"bundle entry {number} of {count} is cut off")
        offset, size, length = _TABLE.unpack(row)
        text = source.read_at(position + _TABLE.size, min(length, MAX_ID + 1))
        name = text.decode("latin-1")
        if length > MAX_ID or len(text) != length or not ENTRY_ID.fullmatch(name):
            raise wrong(position, f"bundle entry {number} of {count} has no entry ID")
        entries.append(Entry(name, offset, size))
        position += _TABLE.size + length
    _check_places(entries, position - at, source.size - at, at)
    return Bundle(tuple(entries), max([position - at, *(e.offset + e.size for e in entries)]))


def _check_places(entries: list[Entry], table: int, room: int, at: int) -> None:
    for entry in entries:
        if entry.size == 0:
            if entry.offset > room:
                raise MalformedError(
                    at, f"entry {entry.id} starts at {entry.offset} of {room} bytes"
                )
        elif entry.offset < table:
            raise MalformedError(at, f"entry {entry.id} starts at {entry.offset}, inside the table")
        elif entry.offset + entry.size > room:
            raise MalformedError(
                at,
                f"entry {entry.id} ends at {entry.offset + entry.size}, the data at {room}",
            )


def read_compressed_header(source: Source, at: int) -> CompressedHeader:
    """Read the CCOB header at ``at``; NotABundleError when its fields make no sense."""
    head = source.read_at(at, 32)
    if len(head) < 8 or head[:4] != COMPRESSED_MAGIC:
        raise NotABundleError(at, "no compressed bundle magic")
    version, method = struct.unpack_from("<HH", head, 4)
    if version not in HEADERS or method not in METHODS:
        raise NotABundleError(at + 4, f"compressed bundle version {version}, method {method}")
    form = HEADERS[version]
    size = 8 + form.size
    if len(head) < size:
        raise NotABundleError(at, "a compressed bundle's header is cut off")
    fields = form.unpack_from(head, 8)
    total = None if version == 1 else int(fields[0])
    if total is not None and total <= size:
        raise NotABundleError(at + 8, f"a compressed bundle of {total} bytes")
    uncompressed = int(fields[-2])
    if not _starts_stream(source.read_at(at + size, 4), METHODS[method]):
        raise NotABundleError(at + size, f"no {METHODS[method]} data follows a CCOB header")
    if total is not None and at + total > source.size:
        raise MalformedError(
            at, f"a compressed bundle ends at {at + total}, the data at {source.size}"
        )
    if uncompressed > UNPACKED_LIMIT:
        raise MalformedError(at, f"a compressed bundle says it unpacks to {uncompressed} bytes")
    return CompressedHeader(version, METHODS[method], size, total, uncompressed, int(fields[-1]))


def _starts_stream(head: bytes, method: str) -> bool:
    """Whether a zlib (RFC 1950) or zstd (RFC 8878) stream can start with these four bytes."""
    if method == "zstd":
        return head == b"\x28\xb5\x2f\xfd"
    return len(head) >= 2 and head[0] & 15 == 8 and (head[0] << 8 | head[1]) % 31 == 0


def decompress(source: Source, at: int, header: CompressedHeader) -> tuple[Source, int]:
    """Return the plain bundle and how many bytes the compressed one takes, header included.

    MalformedError when the data cannot be decompressed, or size or MD5 are not the header's.
    """
    end = source.size if header.total is None else at + header.total
    inflater = _Inflater(source, at + header.size, end, header.method)
    plain = spool(inflater.pieces(), limit=header.uncompressed)
    try:
        if plain.size != header.uncompressed:
            raise MalformedError(
                at, f"unpacks to {plain.size} bytes, its header says {header.uncompressed}"
            )
        if inflater.md5 != header.digest:
            raise MalformedError(at, "the unpacked bytes do not have the MD5 of its header")
    except MalformedError:
        plain.close()
        raise
    return plain, header.total or inflater.position - at


class _Inflater:
    """Decompresses one stream that starts at a position, and knows where it ended."""

    def __init__(self, source: Source, at: int, end: int, method: str) -> None:
        self._source = source
        self._start = at
        self._end = end
        self._method = method
        self._step = 1 << 12  # small at first: most streams that are none fail at once
        self._hash = hashlib.md5(usedforsecurity=False)
        self.position = at

    @property
    def md5(self) -> int:
        return int.from_bytes(self._hash.digest()[:8], "little")

    def pieces(self) -> Iterator[bytes]:
        try:
            for piece in self._zlib() if self._method == "zlib" else self._zstd():
                self._hash.update(piece)
                yield piece
        except (zlib.error, zstandard.ZstdError, MemoryError) as error:
            reason = str(error) or type(error).__name__
            raise MalformedError(
                self._start, f"{self._method} data is damaged ({reason})"
            ) from None

    def _read(self) -> bytes:
        data = self._source.read_at(self.position, min(self._step, self._end - self.position))
        self._step = min(2 * self._step, CHUNK)
        if not data:
            raise MalformedError(self.position, f"{self._method} data is cut off")
        self.position += len(data)
        return data

    def _zlib(self) -> Iterator[bytes]:
        stream = zlib.decompressobj()
        data = b""
        while not stream.eof:
            piece = stream.decompress(data or self._read(), CHUNK)
            data = stream.unconsumed_tail
            if piece:
                yield piece
        self.position -= len(stream.unused_data)

    def _zstd(self) -> Iterator[bytes]:
        # Small input pieces bound the output of one call: a block of 128 KiB takes four bytes at
        # the least, so 512 bytes give 16 MiB at the most.
        stream: Any = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj()
        while not stream.eof:
            data = self._read()
            for start in range(0, len(data), 512):
                piece = stream.decompress(data[start : start + 512])
                if piece:
                    yield piece
                if stream.eof:
                    self.position -= max(0, len(data) - start - 512) + len(stream.unused_data)
                    break
