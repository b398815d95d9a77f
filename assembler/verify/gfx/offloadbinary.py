"""Reads LLVM offload binaries: device code that the new offload driver keeps in objects.

Source: clang's "Offload Packager" document (ClangOffloadPackager, "Binary Format"): the magic bytes
10 ff 10 ad, u32 version (1), u64 size, u64 offset and size of the entry; the entry: u16 image kind,
u16 offload kind, u32 flags, u64 offset and number of strings, u64 offset and size of the image;
strings are u64 offsets of key and value. Offsets count from the start; several follow one another,
aligned to 8 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from assembler.verify.gfx.model import MalformedError
from assembler.verify.gfx.source import Source

MAGIC = b"\x10\xff\x10\xad"
VERSION = 1
MAX_STRINGS = 64
MAX_STRING = 1024
_HEADER = struct.Struct("<4sIQQQ")
_ENTRY = struct.Struct("<HHIQQQQ")


@dataclass(frozen=True, slots=True)
class OffloadBinary:
    """One image: its place from the offload binary's start, and the whole size in bytes."""

    triple: str
    arch: str
    offset: int
    image_size: int
    size: int

    @property
    def is_amd(self) -> bool:
        """Whether the image is for an AMD GPU."""
        return "-amd-" in self.triple


def read_offload_binary(source: Source, at: int) -> OffloadBinary:
    """Read the offload binary at ``at``; MalformedError when it does not fit its bytes."""
    head = source.exactly(at, _HEADER.size, "offload binary header")
    magic, version, size, entry_at, entry_size = _HEADER.unpack(head)
    if magic != MAGIC:
        raise MalformedError(at, "no offload binary starts here")
    if version != VERSION:
        raise MalformedError(at + 4, f"offload binary version {version}, {VERSION} wanted")
    if not _HEADER.size + _ENTRY.size <= size <= source.size - at:
        raise MalformedError(at, f"an offload binary of {size} bytes, {source.size - at} are there")
    whole = source.window(at, size)
    if entry_size < _ENTRY.size:
        raise MalformedError(at + 24, f"an offload binary's entry of {entry_size} bytes")
    try:
        fields = _ENTRY.unpack(whole.exactly(entry_at, _ENTRY.size, "offload binary entry"))
        _, _, _, strings_at, count, image_at, image_size = fields
        if count > MAX_STRINGS:
            raise MalformedError(entry_at, f"an offload binary with {count} strings")
        strings = dict(_string_pair(whole, strings_at + 16 * number) for number in range(count))
    except MalformedError as error:
        raise MalformedError(at + error.offset, error.reason) from None
    if image_at + image_size > size:
        raise MalformedError(at, f"its image ends at {image_at + image_size} of {size}")
    return OffloadBinary(
        strings.get("triple", ""), strings.get("arch", ""), image_at, image_size, size
    )


def _string_pair(whole: Source, at: int) -> tuple[str, str]:
    key, value = struct.unpack("<QQ", whole.exactly(at, 16, "offload binary string table"))
    return _string(whole, key), _string(whole, value)


def _string(whole: Source, at: int) -> str:
    data, end, _ = whole.read_at(at, MAX_STRING).partition(b"\0")
    if not end:
        raise MalformedError(min(at, whole.size), "an offload binary's string has no end")
    return data.decode("utf-8", "replace")
