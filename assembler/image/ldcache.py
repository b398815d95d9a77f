"""The loader's cache for a base: what ldconfig would write, from bytes alone.

The loader itself would find Debian's libraries without it; ``ldconfig -p`` would not, and with it
Python's ``ctypes.util.find_library`` and Triton's search for the HIP runtime. Format: glibc's
sysdeps/generic/dl-cache.h, "glibc-ld.so.cache1.1" without extensions.
"""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

PATH = "etc/ld.so.cache"
_MAGIC = b"glibc-ld.so.cache1.1"
_LITTLE = 2
_ENTRY = struct.Struct("<iIIIQ")
_HEAD = struct.Struct("<20sIIB3xI12x")
# ELF machine -> the flags of a 64-bit library for glibc (FLAG_ELF_LIBC6 and the ABI's own).
_FLAGS: Mapping[str, int] = {"EM_X86_64": 0x0303, "EM_AARCH64": 0x0A03}


@dataclass(frozen=True)
class Library:
    """A shared library: its SONAME, its absolute path and its flags in the cache."""

    soname: str
    path: str
    flags: int


def read_library(path: str, content: bytes) -> Library | None:
    """Return a file's entry, or None when it is no shared library of a known machine."""
    if not content.startswith(b"\x7fELF"):
        return None
    try:
        elf = ELFFile(io.BytesIO(content))
        flags = _FLAGS.get(elf["e_machine"])
        section = elf.get_section_by_name(".dynamic")
        if flags is None or not isinstance(section, DynamicSection):
            return None
        for tag in section.iter_tags("DT_SONAME"):
            return Library(str(tag.soname), path, flags)  # type: ignore[attr-defined]
    except (ELFError, struct.error, ValueError):
        return None
    return None


def compare(one: bytes, two: bytes) -> int:
    """Order library names as the loader's binary search does: numbers by value.

    >>> compare(b"libx.so.10", b"libx.so.9") > 0
    True
    """
    left, right = 0, 0
    while left < len(one):
        a, b = one[left : left + 1], two[right : right + 1]
        if a.isdigit() and b.isdigit():
            left_end, right_end = _number(one, left), _number(two, right)
            difference = int(one[left:left_end]) - int(two[right:right_end])
            if difference:
                return difference
            left, right = left_end, right_end
        elif a.isdigit() or b.isdigit():
            return 1 if a.isdigit() else -1
        elif a != b:
            return a[0] - (b[0] if b else 0)
        else:
            left, right = left + 1, right + 1
    return -two[right] if right < len(two) else 0


def _number(text: bytes, start: int) -> int:
    end = start
    while end < len(text) and text[end : end + 1].isdigit():
        end += 1
    return end


def cache_bytes(libraries: Iterable[Library]) -> bytes:
    """Return the cache of some libraries; of several with one SONAME, the first path's."""
    chosen: dict[bytes, Library] = {}
    for library in sorted(libraries, key=lambda item: item.path):
        chosen.setdefault(library.soname.encode(), library)
    names = sorted(chosen, key=functools.cmp_to_key(compare), reverse=True)
    strings = bytearray()
    start = _HEAD.size + _ENTRY.size * len(names)
    entries = []
    for name in names:
        key = start + len(strings)
        strings += name + b"\0"
        value = start + len(strings)
        strings += chosen[name].path.encode() + b"\0"
        entries.append(_ENTRY.pack(chosen[name].flags, key, value, 0, 0))
    head = _HEAD.pack(_MAGIC, len(names), len(strings), _LITTLE, 0)
    return head + b"".join(entries) + bytes(strings)
