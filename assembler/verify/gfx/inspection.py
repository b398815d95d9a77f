"""Reads the GPU code of one file, whatever kind of file it is."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

from assembler.verify.gfx import bundle, elf, kdb, kpack, offloadbinary
from assembler.verify.gfx.codeobject import Facts, read_code_object
from assembler.verify.gfx.model import CodeObject, Form, Kind, MalformedError, Trouble
from assembler.verify.gfx.scan import Magic, Scanner, magic_at, skip_zeros
from assembler.verify.gfx.source import Source

FATBIN_SECTION = ".hip_fatbin"
BUNDLE_SECTION = "__CLANG_OFFLOAD_BUNDLE__"
OFFLOADING_SECTION = ".llvm.offloading"
SECTIONS = (FATBIN_SECTION, BUNDLE_SECTION, OFFLOADING_SECTION)
BITCODE = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")
SPIRV = b"\x03\x02\x23\x07"
MAX_TROUBLES = 100
CODE_SUFFIXES = (".co", ".hsaco", ".hipfb", ".kpack", ".kdb")
"""Files of these names hold GPU code or are damaged (an empty file, a Git LFS pointer)."""
Item = CodeObject | Trouble


def inspect(source: Source, name: str, *, kernels: bool = False) -> Iterator[Item]:
    """Yield the code objects of one file's bytes, in the order of their offsets."""
    yield from _Inspection(source, name, kernels).run()


@dataclass(frozen=True, slots=True)
class _Place:
    """What is known of a code object before its bytes are read."""

    kind: Kind
    offset: int
    section: str | None = None
    bundle_id: str | None = None
    compression: str | None = None


class _Inspection:
    """The reading of one file."""

    def __init__(self, source: Source, name: str, kernels: bool) -> None:
        self._source = source
        self._name = name
        self._kernels = kernels

    def run(self) -> Iterator[Item]:
        """Yield what is found; a file with too many damaged places is not read to its end."""
        troubles = 0
        for item in self._read():
            yield item
            troubles += isinstance(item, Trouble)
            if troubles == MAX_TROUBLES:
                reason = f"{MAX_TROUBLES} damaged places; the rest of the file was not read"
                yield self._trouble(item.offset, reason)
                return

    def _read(self) -> Iterator[Item]:
        head = self._source.read_at(0, 24)
        if head.startswith(kpack.MAGIC):
            yield from self._kpack()
        elif head.startswith(kdb.MAGIC):
            yield from self._kdb()
        elif head.startswith(elf.MAGIC):
            yield from self._elf()
        elif magic_at(self._source, 0) is not None:
            yield from self._fatbin(0, self._source.size, None)
        elif self._name.endswith(CODE_SUFFIXES):
            yield self._trouble(
                0, f"named like GPU code, and starts with {head[:8].hex() or 'nothing'}"
            )
        else:
            yield from self._anywhere(())

    def _trouble(self, offset: int, reason: str, section: str | None = None) -> Trouble:
        return Trouble(self._name, offset, reason, section)

    # -- ELF ---------------------------------------------------------------------------------

    def _elf(self) -> Iterator[Item]:
        try:
            header = elf.read_header(self._source)
        except MalformedError as error:
            yield self._trouble(error.offset, error.reason)
            return
        if header.machine == elf.EM_AMDGPU:
            yield from self._code(self._source, _Place(Kind.FILE, 0))
            return
        if self._name.endswith(CODE_SUFFIXES):
            yield self._trouble(18, f"ELF machine {header.machine}, not {elf.EM_AMDGPU} (AMDGPU)")
        regions: list[elf.Section] = []
        try:
            regions.extend(
                section
                for section in elf.read_sections(self._source, header)
                if section.name.startswith(SECTIONS) and section.size
            )
        except MalformedError as error:
            yield self._trouble(error.offset, f"host ELF file: {error.reason}")
        done: list[tuple[int, int]] = []
        for section in sorted(regions, key=lambda one: one.offset):
            if section.type in (elf.SHT_NULL, elf.SHT_NOBITS):
                continue
            end = section.offset + section.size
            if section.name.startswith(FATBIN_SECTION):
                yield from self._fatbin(section.offset, end, section.name)
            elif section.name.startswith(BUNDLE_SECTION):
                yield from self._bundle_section(section)
            else:
                yield from self._offloading(section)
            done.append((section.offset, end))
        yield from self._anywhere(tuple(done))

    def _bundle_section(self, section: elf.Section) -> Iterator[Item]:
        """Relocatable device code (-fgpu-rdc): the section's name is magic and entry ID."""
        entry = bundle.Entry(
            section.name.removeprefix(BUNDLE_SECTION), section.offset, section.size
        )
        if not entry.is_amd or entry.size <= 1:
            return
        place = _Place(Kind.SECTION, section.offset, section.name, entry.id)
        yield from self._entry(self._source.window(section.offset, section.size), entry, place)

    def _offloading(self, section: elf.Section) -> Iterator[Item]:
        """Relocatable device code as the new offload driver keeps it."""
        region = self._source.window(0, section.offset + section.size)
        position = section.offset
        while (position := skip_zeros(region, position)) < region.size:
            try:
                found = offloadbinary.read_offload_binary(region, position)
            except MalformedError as error:
                yield self._trouble(error.offset, error.reason, section.name)
                return
            at = position + found.offset
            if found.is_amd:
                entry = bundle.Entry(
                    f"{found.triple}--{found.arch}", found.offset, found.image_size
                )
                place = _Place(Kind.OFFLOAD_BINARY, at, section.name, entry.id)
                yield from self._entry(region.window(at, found.image_size), entry, place)
            position += found.size

    # -- regions -----------------------------------------------------------------------------

    def _fatbin(self, start: int, end: int, section: str | None) -> Iterator[Item]:
        """Read a region that holds nothing but bundles and code objects, zeros between them."""
        region = self._source.window(0, end)
        scanner = Scanner(region)
        kind = Kind.FILE if section is None else Kind.SECTION
        position = skip_zeros(region, start)
        while position < end:
            try:
                size = yield from self._at(region, position, section, kind)
            except MalformedError as error:
                yield self._trouble(error.offset, error.reason, section)
                found = scanner.find(position + 1)
                position = found[0] if found else end
                continue
            position = skip_zeros(region, position + size)

    def _anywhere(self, done: tuple[tuple[int, int], ...]) -> Iterator[Item]:
        """Look for magics outside the regions that were read already.

        A magic without an entry table is somebody's string constant and no trouble.
        """
        scanner = Scanner(self._source)
        position = 0
        while (found := scanner.find(position)) is not None:
            at = found[0]
            inside = next((end for start, end in done if start <= at < end), None)
            if inside is not None:
                position = inside
                continue
            try:
                size = yield from self._at(self._source, at, None, Kind.EMBEDDED)
            except bundle.NotABundleError:
                size = 1
            except MalformedError as error:
                yield self._trouble(error.offset, error.reason)
                size = 1
            position = at + max(1, size)

    def _at(
        self, region: Source, at: int, section: str | None, kind: Kind
    ) -> Generator[Item, None, int]:
        """Read what starts at a position; the generator returns how many bytes it takes."""
        magic = magic_at(region, at)
        if magic is Magic.BUNDLE:
            table = bundle.read_bundle(region, at)
            part = region.window(at, table.size)
            place = _Place(Kind.BUNDLE, at, section)
            for entry in table.entries:
                yield from self._entry(
                    part.window(entry.offset, entry.size),
                    entry,
                    replace(place, offset=at + entry.offset, bundle_id=entry.id),
                )
            return table.size
        if magic is Magic.COMPRESSED:
            return (yield from self._compressed(region, at, section))
        if magic is Magic.ELF:
            try:
                facts = read_code_object(region.window(at, region.size - at), kernels=self._kernels)
            except MalformedError as error:
                raise MalformedError(at + error.offset, error.reason) from None
            yield self._object(facts, facts.extent, _Place(kind, at, section))
            return facts.extent
        raise MalformedError(at, "neither a bundle nor an AMDGPU code object starts here")

    def _compressed(
        self, region: Source, at: int, section: str | None
    ) -> Generator[Item, None, int]:
        header = bundle.read_compressed_header(region, at)
        plain, size = bundle.decompress(region, at, header)
        with plain:
            place = _Place(Kind.COMPRESSED_BUNDLE, at, section, compression=header.method)
            try:
                table = bundle.read_bundle(plain, 0)
            except MalformedError as error:
                reason = f"in its uncompressed bytes, offset {error.offset}: {error.reason}"
                yield self._trouble(at, reason, section)
                return size
            for entry in table.entries:
                yield from self._entry(
                    plain.window(entry.offset, entry.size),
                    entry,
                    replace(place, bundle_id=entry.id),
                )
        return size

    # -- code objects ------------------------------------------------------------------------

    def _entry(self, content: Source, entry: bundle.Entry, place: _Place) -> Iterator[Item]:
        """Read one bundle entry; the host's dummy and other vendors' are passed over."""
        if not entry.is_amd:
            return
        if not content.size:
            yield self._trouble(place.offset, f"entry {entry.id} is empty", place.section)
            return
        yield from self._code(content, place, entry)

    def _code(
        self, content: Source, place: _Place, entry: bundle.Entry | None = None
    ) -> Iterator[Item]:
        """Read the bytes of one code object in whatever form."""
        head = content.read_at(0, 4)
        form = Form.BITCODE if head in BITCODE else Form.SPIRV if head == SPIRV else Form.ELF
        if form is not Form.ELF and entry is not None and entry.processor:
            yield CodeObject(
                path=self._name,
                kind=place.kind,
                offset=place.offset,
                size=content.size,
                processor=entry.processor,
                xnack=entry.feature("xnack"),
                sramecc=entry.feature("sramecc"),
                form=form,
                section=place.section,
                bundle_id=place.bundle_id,
                compression=place.compression,
            )
            return
        try:
            facts = read_code_object(content, kernels=self._kernels)
        except MalformedError as error:
            what = f"entry {place.bundle_id}: " if place.bundle_id else ""
            if place.compression:
                yield self._trouble(
                    place.offset,
                    f"{what}in its uncompressed bytes, offset {error.offset}: {error.reason}",
                    place.section,
                )
            else:
                yield self._trouble(
                    place.offset + error.offset, f"{what}{error.reason}", place.section
                )
            return
        yield self._object(facts, content.size, place)

    def _object(self, facts: Facts, size: int, place: _Place) -> CodeObject:
        return CodeObject(
            path=self._name,
            kind=place.kind,
            offset=place.offset,
            size=size,
            processor=facts.processor,
            xnack=facts.xnack,
            sramecc=facts.sramecc,
            code_object_version=facts.code_object_version,
            generic_version=facts.generic_version,
            elf_type=facts.elf_type,
            flags=facts.flags,
            section=place.section,
            bundle_id=place.bundle_id,
            compression=place.compression,
            kernels=facts.kernels,
        )

    # -- collections -------------------------------------------------------------------------

    def _kpack(self) -> Iterator[Item]:
        try:
            for blob in kpack.read_kpack(self._source):
                if isinstance(blob, MalformedError):
                    yield self._trouble(blob.offset, blob.reason)
                    continue
                place = _Place(Kind.KPACK, blob.offset, blob.binary, blob.target, blob.compression)
                try:
                    with blob.open(self._source) as content:
                        yield from self._packed(content, place)
                except MalformedError as error:
                    yield self._trouble(error.offset, error.reason, blob.binary)
        except MalformedError as error:
            yield self._trouble(error.offset, error.reason)

    def _kdb(self) -> Iterator[Item]:
        try:
            for row in kdb.read_kdb(self._source):
                section = f"row {row.number}: {row.name}"
                if isinstance(row.content, MalformedError):
                    yield self._trouble(0, row.content.reason, section)
                else:
                    place = _Place(Kind.DATABASE, 0, section, None, row.compression)
                    yield from self._packed(row.content, place)
        except MalformedError as error:
            yield self._trouble(error.offset, error.reason)

    def _packed(self, content: Source, place: _Place) -> Iterator[Item]:
        """Read what an archive or database holds: a code object, or bundles of them."""
        if magic_at(content, 0) in (Magic.BUNDLE, Magic.COMPRESSED):
            for item in inspect(content, self._name, kernels=self._kernels):
                if isinstance(item, CodeObject):
                    yield replace(
                        item,
                        kind=place.kind,
                        offset=place.offset,
                        section=place.section,
                        compression=place.compression or item.compression,
                    )
                else:
                    yield self._trouble(place.offset, item.reason, place.section)
            return
        yield from self._code(content, place)
