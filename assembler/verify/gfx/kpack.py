"""Reads TheRock's kpack archives: device code split off from host libraries.

Source: TheRock's rocm-kpack (ROCm/rocm-systems, shared/kpack: "Multi-Architecture Packaging with
Kpack" and its table-of-contents parser). ``KPAK``, u32 version (1), u64 offset of a MessagePack map
at the file's end: ``compression_scheme`` "none" (``blobs``: offset and size by ordinal) or
"zstd-per-kernel" (``zstd_offset`` and ``zstd_size`` of a block: u32 number, then u32 size and zstd
frame of each), and ``toc``: binary -> target -> ordinal, original_size. Little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgpack
import zstandard

from assembler.verify.gfx.model import MalformedError
from assembler.verify.gfx.source import Source, buffered, pieces_of, spool
from assembler.verify.gfx.streams import ZstdStream

MAGIC = b"KPAK"
VERSION = 1
MAX_TOC = 2 << 20
"""A table of contents up to this size (bytes) is read: some 20,000 code objects."""
MAX_KERNELS = 1 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    """One code object: of which host binary, for which target, and where its bytes are."""

    binary: str
    target: str
    offset: int
    size: int
    original_size: int | None
    compression: str | None

    def open(self, source: Source) -> Source:
        """Return the code object's bytes."""
        if self.compression is None:
            return source.window(self.offset, self.size)
        frame = buffered(source.window(self.offset, self.size))
        limit = self.original_size if self.original_size is not None else 1 << 32
        try:
            plain = spool(pieces_of(ZstdStream(frame)), limit=limit)
        except (zstandard.ZstdError, EOFError) as error:
            raise MalformedError(self.offset, f"zstd frame is damaged ({error})") from None
        except MalformedError as error:
            raise MalformedError(self.offset, error.reason) from None
        if self.original_size is not None and plain.size != self.original_size:
            size = plain.size
            plain.close()
            raise MalformedError(
                self.offset, f"unpacks to {size} bytes, the archive says {self.original_size}"
            )
        return plain


def read_kpack(source: Source) -> Iterator[Blob | MalformedError]:
    """Yield what the table of contents lists, and a MalformedError for each entry that is wrong.

    Raises MalformedError when there is no readable table.
    """
    head = source.exactly(0, 16, "kpack header")
    magic, version, toc_at = struct.unpack("<4sIQ", head)
    if magic != MAGIC or version != VERSION:
        raise MalformedError(0, f"kpack format version {version}, {VERSION} wanted")
    if not 16 <= toc_at < source.size:
        raise MalformedError(
            8, f"the table of contents is at {toc_at}, the file ends at {source.size}"
        )
    toc = _unpack_toc(source, toc_at)
    scheme = toc.get("compression_scheme", "none")
    if scheme == "none":
        places = _plain_places(toc, toc_at)
    elif scheme == "zstd-per-kernel":
        places = _zstd_places(source, toc)
    else:
        raise MalformedError(toc_at, f"compression scheme {scheme!r} is not known")
    for binary, targets in _mapping(toc.get("toc"), toc_at, "toc").items():
        for target, entry in _mapping(targets, toc_at, "toc entry").items():
            yield _blob(source, binary, target, entry, places, toc_at, scheme)


def _unpack_toc(source: Source, at: int) -> dict[str, Any]:
    size = source.size - at
    if size > MAX_TOC:
        raise MalformedError(at, f"a table of contents of {size} bytes")
    try:
        toc = msgpack.unpackb(
            source.exactly(at, size, "table of contents"), raw=False, unicode_errors="replace"
        )
    except (msgpack.UnpackException, ValueError, TypeError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise MalformedError(
            at, f"the table of contents is no MessagePack map ({reason})"
        ) from None
    return _mapping(toc, at, "table of contents")


def _mapping(data: object, at: int, what: str) -> dict[str, Any]:
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise MalformedError(at, f"the {what} is no map by name")
    return data


def _number(data: object, at: int, what: str) -> int:
    if not isinstance(data, int) or isinstance(data, bool) or data < 0:
        raise MalformedError(at, f"{what} is no number")
    return data


def _plain_places(toc: dict[str, Any], at: int) -> list[tuple[int, int]]:
    blobs = toc.get("blobs")
    if not isinstance(blobs, list):
        raise MalformedError(at, "there is no list of blobs")
    rows = [_mapping(row, at, "blob") for row in blobs]
    return [
        (_number(row.get("offset"), at, "offset"), _number(row.get("size"), at, "size"))
        for row in rows
    ]


def _zstd_places(source: Source, toc: dict[str, Any]) -> list[tuple[int, int]]:
    start = _number(toc.get("zstd_offset"), 8, "zstd_offset")
    end = start + _number(toc.get("zstd_size"), 8, "zstd_size")
    (count,) = struct.unpack("<I", source.exactly(start, 4, "number of frames"))
    if count > MAX_KERNELS:
        raise MalformedError(start, f"{count} frames")
    places = []
    position = start + 4
    for number in range(count):
        if position + 4 > end:
            raise MalformedError(position, f"frame {number} of {count} is outside its block")
        (size,) = struct.unpack("<I", source.exactly(position, 4, "frame size"))
        places.append((position + 4, size))
        position += 4 + size
    return places


def _blob(
    source: Source,
    binary: str,
    target: str,
    entry: object,
    places: list[tuple[int, int]],
    at: int,
    scheme: str,
) -> Blob | MalformedError:
    try:
        row = _mapping(entry, at, "toc entry")
        ordinal = _number(row.get("ordinal"), at, "ordinal")
        original = row.get("original_size")
        if original is not None:
            original = _number(original, at, "original_size")
        if ordinal >= len(places):
            raise MalformedError(at, f"{binary} for {target} is number {ordinal} of {len(places)}")
        offset, size = places[ordinal]
        if offset + size > source.size:
            raise MalformedError(
                min(offset, source.size),
                f"{binary} for {target} ends at {offset + size}, the file at {source.size}",
            )
    except MalformedError as error:
        return error
    return Blob(binary, target, offset, size, original, None if scheme == "none" else "zstd")
