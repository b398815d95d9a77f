"""What the dynamic loader reads of an ELF file: names, needs, search paths and symbol versions.

Source of the formats: the System V ABI (gABI 4.2) and the GNU symbol versioning supplement
(``.gnu.version_d``, ``.gnu.version_r``). Parsing is pyelftools'; this module reduces a file to the
facts and remembers those of the tree in hand.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, TypeVar

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSegment, DynamicTag
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection
from elftools.elf.segments import InterpSegment

from assembler.verify.tree import Entry, Tree

MAGIC = b"\x7fELF"
X86_64 = "EM_X86_64"
WEAK = 0x2
MOST_VERSIONS = 2000
"""Symbol versions in one file, asked for and defined; glibc defines some fifty."""
T = TypeVar("T")
DAMAGED = (ELFError, ValueError, KeyError, AssertionError, OverflowError, IndexError, TypeError)
"""What pyelftools raises on bytes that are no sound ELF file."""


@dataclass(frozen=True)
class Elf:
    """A dynamically linked object, or a static one (``dynamic`` false).

    ``versions_needed`` maps a library's SONAME to the symbol versions that it must define;
    ``versions_defined`` are those that this file defines. ``rpath`` and ``runpath`` are unexpanded.
    """

    machine: str
    kind: str
    dynamic: bool = False
    interpreter: str | None = None
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    versions_needed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    versions_defined: frozenset[str] = frozenset()
    trouble: str | None = None


def is_elf(tree: Tree, entry: Entry) -> bool:
    """Whether a file starts as ELF files do."""
    if entry.size < 52:
        return False
    with tree.open(entry.path) as stream:
        return stream.read(4) == MAGIC


@functools.lru_cache(maxsize=2)
def elf_files(tree: Tree) -> Mapping[str, Elf]:
    """Return every ELF file of the tree for x86-64 by path; those of GPUs are left out."""
    found: dict[str, Elf] = {}
    for entry in tree.files():
        if is_elf(tree, entry):
            with tree.open(entry.path) as stream:
                facts = read_elf(stream)
            if facts.machine == X86_64 or facts.trouble is not None:
                found[entry.path] = facts
    return found


def read_elf(stream: IO[bytes]) -> Elf:
    """Reduce one file to its facts; a damaged one has ``trouble`` instead of facts."""
    try:
        return _read(ELFFile(stream))
    except (
        ELFError,
        ValueError,
        KeyError,
        AssertionError,
        OverflowError,
        UnicodeDecodeError,
    ) as error:
        return Elf("", "", trouble=str(error) or type(error).__name__)


def _read(file: ELFFile) -> Elf:
    machine = str(file.header["e_machine"])
    kind = str(file.header["e_type"])
    if machine != X86_64:
        return Elf(machine, kind)
    interpreter: str | None = None
    dynamic: DynamicSegment | None = None
    for segment in file.iter_segments():
        if isinstance(segment, InterpSegment):
            interpreter = segment.get_interp_name()
        elif isinstance(segment, DynamicSegment):
            dynamic = segment
    needed, texts = _tags(dynamic)
    wanted, defined = _versions(file)
    return Elf(
        machine=machine,
        kind=kind,
        dynamic=dynamic is not None,
        interpreter=interpreter,
        soname=texts.get("DT_SONAME"),
        needed=needed,
        rpath=_paths(texts.get("DT_RPATH", "")),
        runpath=_paths(texts.get("DT_RUNPATH", "")),
        versions_needed=wanted,
        versions_defined=defined,
    )


def _tags(dynamic: DynamicSegment | None) -> tuple[tuple[str, ...], dict[str, str]]:
    needed: list[str] = []
    texts: dict[str, str] = {}
    for tag in dynamic.iter_tags() if dynamic is not None else ():
        name = tag.entry.d_tag
        if name == "DT_NEEDED":
            needed.append(_text(tag, name))
        elif name in ("DT_SONAME", "DT_RPATH", "DT_RUNPATH"):
            texts[name] = _text(tag, name)
    return tuple(needed), texts


def _text(tag: DynamicTag, name: str) -> str:
    """Return a tag's string; pyelftools gives it an attribute named after the tag."""
    return str(getattr(tag, name.removeprefix("DT_").lower()))


def _versions(file: ELFFile) -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
    wanted: dict[str, tuple[str, ...]] = {}
    defined: set[str] = set()
    count = itertools.count()
    for section in file.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for version, details in _few(section.iter_versions(), count):
                wanted[str(version.name)] = tuple(
                    str(detail.name)
                    for detail in _few(details, count)
                    if not detail["vna_flags"] & WEAK
                )
        elif isinstance(section, GNUVerDefSection):
            for _, names in _few(section.iter_versions(), count):
                defined.add(str(next(iter(names)).name))
    return wanted, frozenset(defined)


def _few(items: Iterable[T], count: Iterator[int]) -> Iterator[T]:
    """Yield the items, but no more than sound files have: damaged chains can go round for ever."""
    for item in items:
        if next(count) > MOST_VERSIONS:
            raise ValueError(f"more than {MOST_VERSIONS} symbol versions")
        yield item


def _paths(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(":") if part)
