"""Makes ELF shared objects with nothing but what the dynamic loader reads."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

HEADERS = 64 + 56 * 3


@dataclass(frozen=True)
class Elf:
    """What a made ELF file says to the loader."""

    soname: str | None = None
    needed: Sequence[str] = ()
    rpath: str | None = None
    runpath: str | None = None
    interpreter: str | None = None
    wants: Mapping[str, Sequence[str]] = field(default_factory=dict)
    defines: Sequence[str] = ()
    machine: int = 62


@dataclass(frozen=True)
class Section:
    """One section: name, type, bytes, and the count that version sections carry."""

    name: str
    kind: int
    data: bytes
    info: int = 0


class Strings:
    """A string table being filled."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        """Return the offset of a new string."""
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


def _hash(name: str) -> int:
    value = 0
    for letter in name.encode():
        value = (value << 4) + letter
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def _needs(elf: Elf, strings: Strings) -> bytes:
    data = b""
    for position, (library, versions) in enumerate(elf.wants.items()):
        following = 0 if position == len(elf.wants) - 1 else 16 * (1 + len(versions))
        name = strings.add(library)
        data += struct.pack("<HHIII", 1, len(versions), name, 16, following)
        for number, version in enumerate(versions):
            following = 0 if number == len(versions) - 1 else 16
            name = strings.add(version)
            data += struct.pack("<IHHII", _hash(version), 0, number + 2, name, following)
    return data


def _definitions(elf: Elf, strings: Strings) -> bytes:
    data = b""
    for position, version in enumerate(elf.defines):
        following = 0 if position == len(elf.defines) - 1 else 28
        name = strings.add(version)
        data += struct.pack(
            "<HHHHIIIII", 1, 0, position + 1, 1, _hash(version), 20, following, name, 0
        )
    return data


def _padded(data: bytes) -> int:
    return -(-len(data) // 8) * 8


def make_elf(elf: Elf) -> bytes:
    """Return an ELF64 little-endian shared object with just these dynamic entries (no code)."""
    strings = Strings()
    tags = [(1, strings.add(name)) for name in elf.needed]
    for tag, text in ((14, elf.soname), (15, elf.rpath), (29, elf.runpath)):
        if text is not None:
            tags.append((tag, strings.add(text)))
    needs, definitions = _needs(elf, strings), _definitions(elf, strings)
    sections = [Section(".dynstr", 3, strings.data)]
    if needs:
        sections.append(Section(".gnu.version_r", 0x6FFFFFFE, needs, len(elf.wants)))
    if definitions:
        sections.append(Section(".gnu.version_d", 0x6FFFFFFD, definitions, len(elf.defines)))
    sections.append(Section(".interp", 1, (elf.interpreter or "").encode() + b"\0"))
    tags += [(5, HEADERS), (10, len(strings.data)), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", tag, value) for tag, value in tags)
    sections.append(Section(".dynamic", 6, dynamic))
    return _lay_out(elf, sections)


def _lay_out(elf: Elf, sections: Sequence[Section]) -> bytes:
    names = Strings()
    table = bytes(64)
    places: list[int] = []
    offset = HEADERS
    for section in sections:
        link = 0 if section.name in (".dynstr", ".interp") else 1
        size = 16 if section.name == ".dynamic" else 0
        table += struct.pack(
            "<IIQQQQIIQQ", names.add(section.name), section.kind, 2, offset, offset,
            len(section.data), link, section.info, 8, size,
        )  # fmt: skip
        places.append(offset)
        offset += _padded(section.data)
    own = names.add(".shstrtab")
    table += struct.pack("<IIQQQQIIQQ", own, 3, 0, 0, offset, len(names.data), 0, 0, 1, 0)
    table_at = offset + _padded(names.data)
    programs = [(1, 0, table_at), (2, places[-1], len(sections[-1].data))]
    if elf.interpreter is not None:
        programs.append((3, places[-2], len(sections[-2].data)))
    count = len(sections) + 2
    data = b"\x7fELF\x02\x01\x01" + bytes(9)
    data += struct.pack(
        "<HHIQQQIHHHHHH", 3, elf.machine, 1, 0, 64, table_at, 0, 64, 56, len(programs), 64,
        count, count - 1,
    )  # fmt: skip
    for kind, at, size in programs:
        data += struct.pack("<IIQQQQQQ", kind, 5, at, at, at, size, size, 8)
    for section, place in zip(sections, places, strict=True):
        data = data.ljust(place, b"\0") + section.data
    return (data.ljust(offset, b"\0") + names.data).ljust(table_at, b"\0") + table
