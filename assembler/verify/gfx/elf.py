"""Reads ELF headers, section and program tables from untrusted bytes.

Sources: the System V gABI (ELF header, extended section numbering) and, for machine and OSABI
numbers, LLVM's "User Guide for AMDGPU Backend" (AMDGPUUsage), section "ELF Code Object".
Every offset and count is checked against the source's size; what does not fit is MalformedError.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from assembler.verify.gfx.model import MalformedError
from assembler.verify.gfx.source import Source

MAGIC = b"\x7fELF"
EM_AMDGPU = 224
OSABI_AMDGPU_HSA, OSABI_AMDGPU_MESA3D = 64, 66
SHT_NULL, SHT_NOTE, SHT_NOBITS = 0, 7, 8
SHN_XINDEX = 0xFFFF
PT_NULL, PT_NOTE = 0, 4
TYPES = {1: "relocatable", 2: "executable", 3: "shared", 4: "core"}
MAX_SECTIONS = 1 << 20
MAX_NAME = 512
MAX_NAMES = 32 << 20
"""A section name table up to this size (bytes) is read whole, a bigger one name by name."""


@dataclass(frozen=True, slots=True)
class Header:
    """The ELF header; ``order`` is the struct prefix of its byte order."""

    is64: bool
    order: str
    osabi: int
    abi_version: int
    type: int
    machine: int
    flags: int
    phoff: int
    phentsize: int
    phnum: int
    shoff: int
    shentsize: int
    shnum: int
    shstrndx: int


@dataclass(frozen=True, slots=True)
class Section:
    """A section header; ``size`` bytes at ``offset``, none in the file for SHT_NOBITS."""

    name: str
    type: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A program header: ``size`` bytes of the file at ``offset``."""

    type: int
    offset: int
    size: int


def read_header(source: Source) -> Header:
    """Read the header at the start of a source."""
    ident = source.exactly(0, 16, "ELF identification")
    if ident[:4] != MAGIC:
        raise MalformedError(0, "no ELF magic")
    if ident[4] not in (1, 2) or ident[5] not in (1, 2) or ident[6] != 1:
        raise MalformedError(4, f"ELF class, byte order or version is none: {ident[4:7].hex()}")
    is64, order = ident[4] == 2, "<" if ident[5] == 1 else ">"
    form = order + ("HHIQQQIHHHHHH" if is64 else "HHIIIIIHHHHHH")
    fields = struct.unpack(form, source.exactly(16, struct.calcsize(form), "ELF header"))
    kind, machine, _, _, phoff, shoff, flags, _, phentsize, phnum, shentsize, shnum, names = fields
    header = Header(
        is64, order, ident[7], ident[8], kind, machine, flags,
        phoff, phentsize, phnum, shoff, shentsize, shnum, names,
    )  # fmt: skip
    if shoff and shentsize < (64 if is64 else 40):
        raise MalformedError(58 if is64 else 46, f"section headers of {shentsize} bytes")
    if phnum and phentsize < (56 if is64 else 32):
        raise MalformedError(54 if is64 else 42, f"program headers of {phentsize} bytes")
    return header


def read_sections(source: Source, header: Header) -> Iterator[Section]:
    """Yield the sections one by one; one whose bytes lie outside the source is Malformed."""
    rows = _raw_sections(source, header)
    first = next(rows, None)
    if first is None:
        return
    strings = first[4] if header.shstrndx == SHN_XINDEX else header.shstrndx
    name_of = _names(source, _raw_section(source, header, strings))
    for number, (name, kind, offset, size, _) in enumerate(itertools.chain((first,), rows)):
        if kind not in (SHT_NULL, SHT_NOBITS) and offset + size > source.size:
            raise MalformedError(
                min(offset, source.size),
                f"section {number} ({name_of(name) or 'no name'}) ends at {offset + size}, "
                f"the data at {source.size}",
            )
        yield Section(name_of(name), kind, offset, size)


def _raw_sections(source: Source, header: Header) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (name offset, type, offset, size, link) of each section header."""
    if not header.shoff:
        return
    form = _form(header)
    count = header.shnum
    if count == 0:  # more than SHN_LORESERVE sections: the first header's size is the count
        first = form.unpack(source.exactly(header.shoff, form.size, "section header table"))
        count = first[5]
    if count > MAX_SECTIONS:
        raise MalformedError(header.shoff, f"{count} sections")
    size = count * header.shentsize
    if header.shoff + size > source.size:
        raise MalformedError(
            min(header.shoff, source.size),
            f"section header table ends at {header.shoff + size}, the data at {source.size}",
        )
    step = max(1, (1 << 20) // header.shentsize)
    for start in range(0, count, step):
        here = header.shoff + start * header.shentsize
        many = min(step, count - start)
        table = source.exactly(here, many * header.shentsize, "section header table")
        for index in range(many):
            row = form.unpack_from(table, index * header.shentsize)
            yield row[0], row[1], row[4], row[5], row[6]


def _raw_section(source: Source, header: Header, number: int) -> tuple[int, int] | None:
    """Return offset and size of one section by its number; None when there is none."""
    form = _form(header)
    row = source.read_at(header.shoff + number * header.shentsize, form.size)
    if not number or len(row) != form.size:
        return None
    fields = form.unpack(row)
    return fields[4], fields[5]


def _form(header: Header) -> struct.Struct:
    return struct.Struct(header.order + ("IIQQQQIIQQ" if header.is64 else "IIIIIIIIII"))


class _names:  # noqa: N801 - a function with memory
    """Looks section names up in their string table."""

    def __init__(self, source: Source, table: tuple[int, int] | None) -> None:
        self._source = source
        self._table = table
        self._whole: bytes | None = None
        if table is not None and table[1] <= MAX_NAMES:
            self._whole = source.read_at(table[0], table[1])

    def __call__(self, offset: int) -> str:
        if self._table is None or offset >= self._table[1]:
            return ""
        if self._whole is not None:
            end = self._whole.find(b"\0", offset, offset + MAX_NAME)
            data = self._whole[offset : end if end >= 0 else offset + MAX_NAME]
        else:
            data = self._source.read_at(self._table[0] + offset, MAX_NAME).partition(b"\0")[0]
        return data.decode("utf-8", "replace")


def read_segments(source: Source, header: Header) -> tuple[Segment, ...]:
    """Read the program header table; segments whose bytes lie outside are MalformedError."""
    form = struct.Struct(header.order + ("IIQQQQQQ" if header.is64 else "IIIIIIII"))
    offset_at, size_at = (2, 5) if header.is64 else (1, 4)
    table = source.exactly(header.phoff, header.phnum * header.phentsize, "program header table")
    segments = []
    for number in range(header.phnum):
        row = form.unpack_from(table, number * header.phentsize)
        kind, offset, size = row[0], row[offset_at], row[size_at]
        if kind != PT_NULL and size and offset + size > source.size:
            raise MalformedError(
                min(offset, source.size),
                f"segment {number} ends at {offset + size}, the data at {source.size}",
            )
        segments.append(Segment(kind, offset, size))
    return tuple(segments)
