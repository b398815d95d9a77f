"""Reads one AMDGPU code object: its target, its version, and the kernels that its notes name.

Source: LLVM's "User Guide for AMDGPU Backend" (AMDGPUUsage), sections "ELF Code Object" (header,
e_flags), "Note Records" and "Code Object Metadata" (NT_AMDGPU_METADATA of V3 and after, a
MessagePack map with ``amdhsa.kernels``; V2 had YAML, whose kernels are not read).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgpack

from assembler.verify.gfx.elf import (
    EM_AMDGPU,
    OSABI_AMDGPU_HSA,
    PT_NOTE,
    PT_NULL,
    SHT_NOBITS,
    SHT_NOTE,
    SHT_NULL,
    TYPES,
    Header,
    read_header,
    read_sections,
    read_segments,
)
from assembler.verify.gfx.flags import ABI_VERSIONS, FIRST_AMDGCN, MACH_MASK, decode_flags
from assembler.verify.gfx.model import Feature, Kernel, MalformedError
from assembler.verify.gfx.source import Source

NT_AMD_HSA_ISA_VERSION, NT_AMDGPU_METADATA = 3, 32
XNACK_V2 = 0x01
MAX_NOTE = 32 << 20
"""A metadata note up to this size (bytes) is read, with up to MAX_KERNELS kernels."""
MAX_KERNELS = 200_000
MAX_NOTES = 4096
Place = tuple[int, int]
"""Offset and size in bytes."""
FIELDS = {
    ".vgpr_count": "vgprs",
    ".agpr_count": "agprs",
    ".sgpr_count": "sgprs",
    ".group_segment_fixed_size": "lds",
    ".private_segment_fixed_size": "scratch",
    ".wavefront_size": "wavefront",
    ".vgpr_spill_count": "vgpr_spills",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What a code object says about itself; ``extent`` is its size in bytes by its own headers."""

    processor: str
    xnack: Feature
    sramecc: Feature
    code_object_version: int | None
    generic_version: int | None
    elf_type: str
    flags: int
    extent: int
    kernels: tuple[Kernel, ...] | None


def read_code_object(source: Source, *, kernels: bool = False) -> Facts:
    """Read the AMDGPU ELF that a source is; MalformedError when it is none or is cut off."""
    header = read_header(source)
    if header.machine != EM_AMDGPU:
        raise MalformedError(18, f"machine {header.machine}, not {EM_AMDGPU} (AMDGPU)")
    version = _version(header)
    notes, end = _layout(source, header)
    if version == 2 and header.flags & MACH_MASK < FIRST_AMDGCN:
        processor = _processor_v2(source, notes)
        xnack = Feature.ON if header.flags & XNACK_V2 else Feature.OFF
        sramecc, generic = Feature.UNSUPPORTED, None
    else:
        decoded = decode_flags(header.flags, version)
        if not decoded.known:
            raise MalformedError(
                48 if header.is64 else 36,
                f"e_flags 0x{header.flags:x} name no processor that is known as of LLVM 22",
            )
        processor, xnack, sramecc = decoded.processor, decoded.xnack, decoded.sramecc
        generic = decoded.generic_version
    return Facts(
        processor=processor,
        xnack=xnack,
        sramecc=sramecc,
        code_object_version=version,
        generic_version=generic,
        elf_type=TYPES.get(header.type, f"type {header.type}"),
        flags=header.flags,
        extent=end,
        kernels=_kernels(source, notes) if kernels else None,
    )


def _version(header: Header) -> int | None:
    if header.osabi != OSABI_AMDGPU_HSA:
        return None
    if header.abi_version not in ABI_VERSIONS:
        raise MalformedError(
            8, f"ABI version {header.abi_version} names no known code object version"
        )
    return ABI_VERSIONS[header.abi_version]


def _layout(source: Source, header: Header) -> tuple[tuple[Place, ...], int]:
    """Return where notes are, and where the last byte ends that the headers speak of."""
    ends = [64 if header.is64 else 52, header.phoff + header.phnum * header.phentsize]
    by_sections: list[Place] = []
    by_segments: list[Place] = []
    for segment in read_segments(source, header):
        if segment.type != PT_NULL:
            ends.append(segment.offset + segment.size)
        if segment.type == PT_NOTE:
            by_segments.append((segment.offset, segment.size))
    last, count = 0, 0
    for section in read_sections(source, header):
        count += 1
        if section.type not in (SHT_NULL, SHT_NOBITS):
            last = max(last, section.offset + section.size)
        if section.type == SHT_NOTE and len(by_sections) < MAX_NOTES:
            by_sections.append((section.offset, section.size))
    if header.shoff:
        ends += [last, header.shoff + count * header.shentsize]
    return tuple(by_sections or by_segments), max(ends)


def _notes(source: Source, places: tuple[Place, ...]) -> Iterator[tuple[str, int, int, int]]:
    """Yield (name, type, offset, size) of each note's descriptor."""
    for start, size in places:
        at, end = start, start + size
        while at + 12 <= end:
            name_size, size_here, kind = struct.unpack("<III", source.exactly(at, 12, "note"))
            name_at = at + 12
            data_at = name_at + (name_size + 3 & ~3)
            at = data_at + (size_here + 3 & ~3)
            if data_at + size_here > end or name_size > 256:
                raise MalformedError(name_at - 12, "a note is longer than its section")
            name = source.exactly(name_at, name_size, "note name").rstrip(b"\0")
            yield name.decode("utf-8", "replace"), kind, data_at, size_here


def _processor_v2(source: Source, notes: tuple[Place, ...]) -> str:
    """Return the processor that a V2 object's ISA note names."""
    for name, kind, at, size in _notes(source, notes):
        if name == "AMD" and kind == NT_AMD_HSA_ISA_VERSION and size >= 16:
            major, minor, stepping = struct.unpack("<III", source.exactly(at + 4, 12, "ISA note"))
            if major < 100 and minor < 10 and stepping < 16:
                return f"gfx{major}{minor}{stepping:x}"
    raise MalformedError(48, "a V2 code object without a note that names its processor")


def _kernels(source: Source, notes: tuple[Place, ...]) -> tuple[Kernel, ...] | None:
    """Return the kernels of the metadata note, or None when there is no such note."""
    for name, kind, at, size in _notes(source, notes):
        if name == "AMDGPU" and kind == NT_AMDGPU_METADATA:
            if size > MAX_NOTE:
                raise MalformedError(at, f"a metadata note of {size} bytes")
            try:
                return tuple(_unpack_kernels(source, at, size))
            except (msgpack.UnpackException, ValueError, TypeError, RecursionError) as error:
                reason = str(error) or type(error).__name__
                raise MalformedError(
                    at, f"the metadata note is no MessagePack map ({reason})"
                ) from None
    return None


def _unpack_kernels(source: Source, at: int, size: int) -> Iterator[Kernel]:
    """Walk the metadata map; only ``amdhsa.kernels`` is taken, argument lists are skipped."""
    unpacker = msgpack.Unpacker(max_buffer_size=size + 1)
    for start in range(0, size, 1 << 20):
        unpacker.feed(source.exactly(at + start, min(1 << 20, size - start), "metadata note"))
    for _ in range(unpacker.read_map_header()):
        if _string(unpacker) != "amdhsa.kernels":
            unpacker.skip()
            continue
        count = unpacker.read_array_header()
        if count > MAX_KERNELS:
            raise ValueError(f"{count} kernels")
        for _ in range(count):
            yield _unpack_kernel(unpacker)


def _unpack_kernel(unpacker: msgpack.Unpacker) -> Kernel:
    name = ""
    numbers: dict[str, int] = {}
    for _ in range(unpacker.read_map_header()):
        key = _string(unpacker)
        if key == ".name":
            name = _string(unpacker)
        elif key in FIELDS:
            numbers[FIELDS[key]] = _number(unpacker, key)
        else:
            unpacker.skip()
    return Kernel(name, **numbers)


# Strings and numbers are taken byte by byte: unpack() would build whatever object stands there,
# which a damaged note can make as big as it likes.


def _string(unpacker: msgpack.Unpacker) -> str:
    (kind,) = _bytes(unpacker, 1)
    if 0xA0 <= kind <= 0xBF:
        size = kind & 31
    elif kind in (0xD9, 0xDA):
        size = int.from_bytes(_bytes(unpacker, kind - 0xD8), "big")
    else:
        raise TypeError(f"type 0x{kind:02x} where a string should be")
    return _bytes(unpacker, size).decode("utf-8", "replace")


def _number(unpacker: msgpack.Unpacker, what: str) -> int:
    (kind,) = _bytes(unpacker, 1)
    if kind < 0x80:
        return kind
    if 0xCC <= kind <= 0xCF:
        return int.from_bytes(_bytes(unpacker, 1 << kind - 0xCC), "big")
    raise TypeError(f"{what} is no number")


def _bytes(unpacker: msgpack.Unpacker, size: int) -> bytes:
    data: bytes = unpacker.read_bytes(size)
    if len(data) != size:
        raise ValueError("it is cut off")
    return data
