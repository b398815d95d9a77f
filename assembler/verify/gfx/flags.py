"""Decodes e_flags of AMDGPU ELF files: processor, XNACK, SRAM-ECC, generic version.

Source: LLVM's "User Guide for AMDGPU Backend" (AMDGPUUsage), tables "AMDGPU ELF Header e_flags" for
code object V2, V3, V4 and V5, and V6 and after. The processor numbers are data (flags.toml).
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

from assembler.verify.gfx.model import Feature

MACH_MASK = 0xFF
FIRST_AMDGCN = 0x20
XNACK_V3, SRAMECC_V3 = 0x100, 0x200
XNACK_SHIFT, SRAMECC_SHIFT = 8, 10
GENERIC_SHIFT = 24
STATES = (Feature.UNSUPPORTED, Feature.ANY, Feature.OFF, Feature.ON)

ABI_VERSIONS: Mapping[int, int] = MappingProxyType({0: 2, 1: 3, 2: 4, 3: 5, 4: 6})
"""EI_ABIVERSION of ELFOSABI_AMDGPU_HSA -> code object version."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A row of flags.toml."""

    mach: int
    name: str
    architecture: str = "amdgcn"
    xnack: bool = False
    sramecc: bool = False
    covers: tuple[str, ...] = ()
    note: str = ""

    @property
    def generic(self) -> bool:
        """Whether the name stands for a family of processors (``gfx9-4-generic``)."""
        return self.name.endswith("-generic")


@dataclass(frozen=True, slots=True)
class Decoded:
    """What e_flags say; ``processor`` is ``unknown-0x…`` for a number that the table lacks."""

    processor: str
    xnack: Feature
    sramecc: Feature
    generic_version: int | None
    known: bool


@functools.cache
def processors() -> Mapping[int, Processor]:
    """Return the table by processor number."""
    text = resources.files("assembler.verify.gfx").joinpath("flags.toml").read_text("utf-8")
    rows = (
        Processor(**(row | {"covers": tuple(row.get("covers", ()))}))
        for row in tomllib.loads(text)["processor"]
    )
    return MappingProxyType({row.mach: row for row in rows})


def decode_flags(flags: int, code_object_version: int | None) -> Decoded:
    """Decode ``e_flags``; ``code_object_version`` is None outside the HSA ABI (PAL, Mesa).

    V3 and before have one bit a feature: it is on or off, or unsupported when the processor does
    not have it. V4 and after have two bits.
    """
    row = processors().get(flags & MACH_MASK)
    name = row.name if row else f"unknown-0x{flags & MACH_MASK:02x}"
    if code_object_version is not None and code_object_version <= 3:
        xnack = _one_bit(flags & XNACK_V3, supported=row is not None and row.xnack)
        sramecc = _one_bit(flags & SRAMECC_V3, supported=row is not None and row.sramecc)
    else:
        xnack = STATES[flags >> XNACK_SHIFT & 3]
        sramecc = STATES[flags >> SRAMECC_SHIFT & 3]
    version = flags >> GENERIC_SHIFT & 0xFF
    generic = version if (code_object_version or 0) >= 6 and version else None
    return Decoded(name, xnack, sramecc, generic, known=row is not None)


def _one_bit(bit: int, *, supported: bool) -> Feature:
    if bit:
        return Feature.ON
    return Feature.OFF if supported else Feature.UNSUPPORTED


@functools.cache
def runs_on(processor: str) -> frozenset[str]:
    """Return the processors on which code for ``processor`` runs: itself, or a family's members."""
    covers = (row.covers for row in processors().values() if row.name == processor)
    return frozenset({processor, *next(covers, ())})
