"""What the reader says about GPU code: code objects, and places that it could not read."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class MalformedError(Exception):
    """Bytes that are not what their format says; becomes a Trouble at the reader's edge.

    ``offset`` counts bytes from the start of the source in which they were read.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"offset {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class Feature(enum.StrEnum):
    """A target feature (XNACK, SRAM-ECC) of a code object.

    Source: LLVM's "User Guide for AMDGPU Backend" (AMDGPUUsage), table of ELF header e_flags for
    code object V4 and after; V3 knows only on and off.
    """

    UNSUPPORTED = "unsupported"
    ANY = "any"
    OFF = "off"
    ON = "on"


class Form(enum.StrEnum):
    """In which language the code is: machine code, LLVM bitcode, or SPIR-V compiled on the GPU."""

    ELF = "elf"
    BITCODE = "bitcode"
    SPIRV = "spirv"


class Kind(enum.StrEnum):
    """In what the code object was found."""

    FILE = "file"
    EMBEDDED = "embedded"
    BUNDLE = "bundle"
    COMPRESSED_BUNDLE = "compressed-bundle"
    SECTION = "section"
    OFFLOAD_BINARY = "offload-binary"
    KPACK = "kpack"
    DATABASE = "kdb"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry of ``amdhsa.kernels`` in the metadata note; None where the note is silent.

    ``lds`` is ``.group_segment_fixed_size`` and ``scratch`` ``.private_segment_fixed_size``, both
    in bytes; the counts are registers, ``wavefront`` lanes.
    """

    name: str
    vgprs: int | None = None
    agprs: int | None = None
    sgprs: int | None = None
    lds: int | None = None
    scratch: int | None = None
    wavefront: int | None = None
    vgpr_spills: int | None = None


@dataclass(frozen=True, slots=True)
class CodeObject:
    """One piece of GPU code.

    ``path`` is the file inside what was read; ``!/`` stands before a name inside an archive.
    ``offset`` is where it starts in that file, or, when ``compression`` is set, where the
    compressed container (CCOB header, kpack frame) starts; a database's row is in ``section``.
    ``size`` is in bytes, uncompressed. ``bundle_id`` is the entry ID that its bundle (or kpack
    archive) gives it, which should agree with ``processor`` from its own ELF header.
    ``code_object_version``, ``flags`` and ``elf_type`` are None for bitcode and SPIR-V; ``kernels``
    is None unless asked for and said by a metadata note of code object V3 or later.
    """

    path: str
    kind: Kind
    offset: int
    size: int
    processor: str
    xnack: Feature = Feature.UNSUPPORTED
    sramecc: Feature = Feature.UNSUPPORTED
    form: Form = Form.ELF
    code_object_version: int | None = None
    generic_version: int | None = None
    elf_type: str | None = None
    flags: int | None = None
    section: str | None = None
    bundle_id: str | None = None
    compression: str | None = None
    kernels: tuple[Kernel, ...] | None = None

    @property
    def target(self) -> str:
        """The target ID: processor and the features that are fixed, in alphabetical order."""
        return self.processor + "".join(
            f":{name}{'+' if value is Feature.ON else '-'}"
            for name, value in (("sramecc", self.sramecc), ("xnack", self.xnack))
            if value in (Feature.ON, Feature.OFF)
        )

    def as_dict(self) -> dict[str, object]:
        """Return the same facts as plain data for JSON."""
        data: dict[str, object] = {
            name: getattr(self, name)
            for name in self.__slots__
            if name != "kernels" and getattr(self, name) is not None
        }
        data["target"] = self.target
        if self.kernels is not None:
            data["kernels"] = [
                {n: getattr(k, n) for n in Kernel.__slots__ if getattr(k, n) is not None}
                for k in self.kernels
            ]
        return data


@dataclass(frozen=True, slots=True)
class Trouble:
    """A place that should hold GPU code, or files, and could not be read.

    ``offset`` counts bytes from the start of the file ``path``; for what was read inside compressed
    data, from the start of the uncompressed bytes, which ``reason`` then says.
    """

    path: str
    offset: int
    reason: str
    section: str | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the same facts as plain data for JSON."""
        return {n: getattr(self, n) for n in self.__slots__ if getattr(self, n) is not None}


@dataclass(frozen=True, slots=True)
class TargetSummary:
    """How much code there is for one target ID: objects, files that hold them, bytes, kernels."""

    target: str
    objects: int
    files: int
    size: int
    kernels: int | None


def summarise(items: Iterable[CodeObject | Trouble]) -> tuple[TargetSummary, ...]:
    """Return one summary per target ID, by name; troubles are passed over.

    ``kernels`` is None unless every code object of the target tells its kernels.
    """
    groups: dict[str, list[CodeObject]] = {}
    for item in items:
        if isinstance(item, CodeObject):
            groups.setdefault(item.target, []).append(item)
    return tuple(
        TargetSummary(
            target=target,
            objects=len(found),
            files=len({one.path for one in found}),
            size=sum(one.size for one in found),
            kernels=sum(len(one.kernels or ()) for one in found)
            if all(one.kernels is not None for one in found)
            else None,
        )
        for target, found in sorted(groups.items())
    )
