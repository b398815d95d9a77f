"""Reads /etc/ld.so.cache, glibc's "glibc-ld.so.cache1.1" format (sysdeps/generic/dl-cache.h).

The file starts with the magic, the number of entries and the size of the string table; each entry
holds flags, and the offsets of the library's name and path from the start of this header. An older
"ld.so-1.7.0" table may come before it; since glibc 2.32 ldconfig writes none.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
ELF64_X86 = 0x0303
"""FLAG_X8664_LIB64 | FLAG_ELF_LIBC6: a 64-bit x86 library for this C library."""
MOST_ENTRIES = 100_000


def parse_cache(data: bytes) -> Mapping[str, str]:
    """Return library name -> absolute path, the first entry of a name wins as in ld.so.

    Entries that need a hardware capability are left out, as are those of other architectures. A
    file that is no such cache gives an empty mapping, as it does for ld.so.
    """
    start = data.find(MAGIC)
    if start < 0 or len(data) < start + _HEADER.size:
        return {}
    _, count, _, _, _ = _HEADER.unpack_from(data, start)
    found: dict[str, str] = {}
    position = start + _HEADER.size
    for _ in range(min(count, MOST_ENTRIES)):
        if position + _ENTRY.size > len(data):
            break
        flags, key, value, _, hardware = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        if flags == ELF64_X86 and hardware == 0:
            found.setdefault(_string(data, start + key), _string(data, start + value))
    return found


def _string(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset)
    return data[offset : end if end >= 0 else len(data)].decode(errors="surrogateescape")
