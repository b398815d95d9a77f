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
    SHT_NOTE,
    TYPES,
    Header,
    Section,
    Segment,
    extent,
    read_header,
    read_sections,
    read_segments,
)
from assembler.verify.gfx.flags import ABI_VERSIONS, FIRST_AMDGCN, MACH_MASK, decode_flags
from assembler.verify.gfx.model import Feature, Kernel, MalformedError
from assembler.verify.gfx.source import Source

NT_AMD_HSA_ISA_VERSION, NT_AMDGPU_METADATA = 3, 32
XNACK_V2 = 0x01
MAX_NOTE = 128 << 20
"""A metadata note above this size (bytes) is not read; the biggest known have some 20 MiB."""
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
    segments = read_segments(source, header) if header.phnum else ()
    sections = read_sections(source, header)
    if version == 2 and header.flags & MACH_MASK < FIRST_AMDGCN:
        processor = _processor_v2(source, sections, segments)
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
        extent=extent(header, sections, segments),
        kernels=_kernels(source, sections, segments) if kernels else None,
    )


def _version(header: Header) -> int | None:
    if header.osabi != OSABI_AMDGPU_HSA:
        return None
    if header.abi_version not in ABI_VERSIONS:
        raise MalformedError(
            8, f"ABI version {header.abi_version} names no known code object version"
        )
    return ABI_VERSIONS[header.abi_version]


def _notes(
    source: Source, sections: tuple[Section, ...], segments: tuple[Segment, ...]
) -> Iterator[tuple[str, int, int, int]]:
    """Yield (name, type, offset, size) of each note's descriptor."""
    places = [(s.offset, s.size) for s in sections if s.type == SHT_NOTE]
    places = places or [(s.offset, s.size) for s in segments if s.type == PT_NOTE]
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


def _processor_v2(
    source: Source, sections: tuple[Section, ...], segments: tuple[Segment, ...]
) -> str:
    """Return the processor that a V2 object's ISA note names."""
    for name, kind, at, size in _notes(source, sections, segments):
        if name == "AMD" and kind == NT_AMD_HSA_ISA_VERSION and size >= 16:
            major, minor, stepping = struct.unpack("<III", source.exactly(at + 4, 12, "ISA note"))
            if major < 100 and minor < 10 and stepping < 16:
                return f"gfx{major}{minor}{stepping:x}"
    raise MalformedError(48, "a V2 code object without a note that names its processor")


def _kernels(
    source: Source, sections: tuple[Section, ...], segments: tuple[Segment, ...]
) -> tuple[Kernel, ...] | None:
    """Return the kernels of the metadata note, or None when there is no such note."""
    for name, kind, at, size in _notes(source, sections, segments):
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
    unpacker = msgpack.Unpacker(
        raw=False, strict_map_key=False, max_buffer_size=size + 1, unicode_errors="replace"
    )
    for start in range(0, size, 1 << 20):
        unpacker.feed(source.exactly(at + start, min(1 << 20, size - start), "metadata note"))
    for _ in range(unpacker.read_map_header()):
        if unpacker.unpack() != "amdhsa.kernels":
            unpacker.skip()
            continue
        for _ in range(unpacker.read_array_header()):
            yield _unpack_kernel(unpacker)


def _unpack_kernel(unpacker: msgpack.Unpacker) -> Kernel:
    name = ""
    numbers: dict[str, int] = {}
    for _ in range(unpacker.read_map_header()):
        key = unpacker.unpack()
        if key == ".name":
            name = str(unpacker.unpack())
        elif key in FIELDS:
            value = unpacker.unpack()
            if not isinstance(value, int):
                raise TypeError(f"{key} is no number")
            numbers[FIELDS[key]] = value
        else:
            unpacker.skip()
    return Kernel(name, **numbers)
