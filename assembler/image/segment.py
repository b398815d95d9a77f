"""A package as a run of tar entries: what installing it at the prefix gives, without unpacking it.

The package's own order is kept (its hash fixes it, and hard links follow their targets); what an
install adds comes after: entry points, bytecode, and the record in conda-meta. Directories are not
part of a segment: a layer emits each of its directories once, before its segments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from assembler.bytecode.compiler import Batch, Interpreter
from assembler.bytecode.python import lasting
from assembler.digest import CHUNK, chunks, digest_of, sha256_bytes
from assembler.errors import ImageError
from assembler.image.compression import Codec
from assembler.image.condafile import (
    Member,
    PathEntry,
    check_package,
    damaged,
    members,
    plain_name,
)
from assembler.image.cut import Part
from assembler.image.entry import Entry, Kind, check_path, header, padding
from assembler.image.placement import Placement, entry_point_script
from assembler.image.record import InstalledPath, prefix_record
from assembler.image.relocate import check_length, replace_binary, replace_text

# Changes only when the bytes of a segment may.
SEGMENT_FORMAT = 1
ACTIVATION = ("etc/conda/activate.d/", "etc/conda/env_vars.d/")
_SETID = 0o6000


@dataclass(frozen=True)
class SegmentSpec:
    """Everything that a segment's bytes depend on."""

    package: Path
    sha256: str
    md5: str
    size: int
    placement: Placement
    prefix: str
    mtime: int
    part: Part | None = None

    def key(self, codec: Codec) -> str:
        """Return the content key: same key, same bytes."""
        python = self.placement.python if self.placement.uses_python else None
        part = {"part": self.part.key} if self.part else {}
        return digest_of(
            {
                **part,
                "package": self.sha256,
                "file": self.placement.info.file,
                "md5": self.md5,
                "prefix": self.prefix,
                "mtime": self.mtime,
                "python": asdict(python) if python else None,
                "compression": codec.label,
                "format": SEGMENT_FORMAT,
            }
        )

    @property
    def completes(self) -> bool:
        """Whether the segment has what an install adds: all have, but the first parts of a cut."""
        return self.part is None or self.part.last

    def holds(self, name: str) -> bool:
        """Tell whether a file of the package, by its name in it, belongs into the segment."""
        return self.part is None or name in self.part.members

    @property
    def root(self) -> bytes:
        """The prefix as a path inside the image, with a trailing slash."""
        return self.prefix.strip("/").encode() + b"/"

    def path(self, place: str) -> bytes:
        """Return the image path of a place in the prefix."""
        return self.root + check_path(
            place.encode("utf-8", "surrogateescape"), self.placement.info.file
        )


@dataclass
class Notes:
    """What came up while a segment was made; complete once its last byte is out."""

    entries: int = 0
    stripped: list[str] = field(default_factory=list)
    not_compiled: list[str] = field(default_factory=list)
    activation: dict[str, str] = field(default_factory=dict)


class SegmentStream:
    """Yields a package's tar entries; ``notes`` tells what came up."""

    def __init__(self, spec: SegmentSpec, interpreter: Interpreter | None) -> None:
        self.notes = Notes()
        self._spec = spec
        self._placement = spec.placement
        self._batch = Batch(interpreter, spec.prefix) if interpreter else None
        cut = spec.part is not None
        self._sources = spec.placement.sources if interpreter or cut else frozenset()
        python = spec.placement.python
        self._bytecode = {python.bytecode(place): place for place in self._sources if python}
        # Regular files already written, by their path in the package: what hard links may name.
        self._written: dict[str, tuple[str, PathEntry, Entry]] = {}
        self._ready: set[str] = set()  # modules whose package brought lasting bytecode
        self._paths: dict[str, InstalledPath] = {}

    def pieces(self) -> Iterator[bytes]:
        """Yield the segment's bytes, in pieces of no particular size.

        Raises HashMismatchError before the first byte when the package is not the locked one.
        """
        check_package(self._spec.package, self._spec.sha256)
        missing = {
            name
            for name, (_, entry) in self._placement.places.items()
            if entry.path_type != "directory"
        }
        for member in members(self._spec.package):
            placed = self._placement.places.get(member.name)
            if placed is None or member.info.isdir():
                continue
            if member.name not in missing:
                raise damaged(self._spec.package, f"{member.name} comes twice")
            missing.discard(member.name)
            if self._spec.holds(member.name):
                yield from self._member(member, *placed)
            elif self._spec.completes:
                self._pass(member, *placed)
        if missing:
            raise damaged(self._spec.package, f"{min(missing)} is missing")
        if self._spec.completes:
            yield from self._additions()

    def _pass(self, member: Member, place: str, entry: PathEntry) -> None:
        """Look at a file of another part: bytecode and the record are made of all."""
        notes, self.notes = self.notes, Notes()
        for _ in self._member(member, place, entry):
            pass
        self.notes = notes

    def _member(self, member: Member, place: str, entry: PathEntry) -> Iterator[bytes]:
        info = member.info
        if info.issym():
            yield from self._symlink(place, entry, info.linkname)
        elif info.islnk():
            yield from self._hardlink(member, place, entry)
        elif member.content is not None:
            yield from self._file(member, member.content, info.size, place, entry)
        else:
            raise ImageError(
                f"{self._placement.info.file} holds {member.name}, which is neither file, folder "
                "nor link",
                remedy="build that package again without it",
            )

    def _symlink(self, place: str, entry: PathEntry, target: str) -> Iterator[bytes]:
        text = target.encode("utf-8", "surrogateescape")
        self._note(place, entry, sha256_bytes(text), entry.size)
        yield header(Entry.symlink(self._spec.path(place), text, self._spec.mtime))

    def _hardlink(self, member: Member, place: str, entry: PathEntry) -> Iterator[bytes]:
        written = self._written.get(plain_name(member.info.linkname))
        if written is not None:
            _, other, target = written
            alike = (other.placeholder, other.file_mode) == (entry.placeholder, entry.file_mode)
            if alike and place not in self._sources and place not in self._bytecode:
                twin = self._paths[written[0]]
                self._note(place, entry, twin.sha256, twin.size)
                yield header(
                    Entry(
                        self._spec.path(place),
                        Kind.HARDLINK,
                        target.mode,
                        self._spec.mtime,
                        target=target.path,
                    )
                )
                return
        # The other name is not installed, or not with the same content: a file of its own then.
        wanted = plain_name(member.info.linkname)
        for other_member in members(self._spec.package):
            if other_member.name != wanted:
                continue
            if other_member.info.islnk():
                wanted = plain_name(other_member.info.linkname)
            elif other_member.content is not None:
                size = other_member.info.size
                yield from self._file(other_member, other_member.content, size, place, entry)
                return
        raise damaged(self._spec.package, f"{member.name} links to {wanted}, which is not there")

    def _file(
        self, member: Member, content: IO[bytes], size: int, place: str, entry: PathEntry
    ) -> Iterator[bytes]:
        executable = bool(member.info.mode & 0o111)
        if member.info.mode & _SETID:
            self.notes.stripped.append(place)
        if entry.placeholder and entry.file_mode == "binary":
            yield from self._binary(content, size, place, entry, executable=executable)
            return
        if place in self._bytecode:
            data = content.read()
            if not lasting(data):
                return
            self._ready.add(self._bytecode[place])
            yield from self._whole(data, place, entry, executable=executable)
            return
        if entry.placeholder or place in self._sources or place.startswith(ACTIVATION):
            data = content.read()
            if entry.placeholder:
                prefix = self._spec.prefix.encode()
                data = replace_text(data, entry.placeholder.encode(), prefix)
            # The channel's own packages have their bytecode before the modules.
            if place in self._sources and place not in self._ready and self._batch:
                self._batch.add(place, data)
            if place.startswith(ACTIVATION):
                self.notes.activation[place] = data.decode("utf-8", "replace")
            yield from self._whole(data, place, entry, executable=executable)
            return
        self._note(place, entry, entry.sha256, size)
        yield from self._head(member.name, place, entry, size, executable=executable)
        yield from chunks(content)
        yield padding(size)

    def _whole(
        self, data: bytes, place: str, entry: PathEntry, *, executable: bool
    ) -> Iterator[bytes]:
        changed = entry.placeholder or not entry.sha256
        self._note(place, entry, sha256_bytes(data) if changed else entry.sha256, len(data))
        yield from self._head(entry.path, place, entry, len(data), executable=executable)
        yield data
        yield padding(len(data))

    def _binary(
        self, content: IO[bytes], size: int, place: str, entry: PathEntry, *, executable: bool
    ) -> Iterator[bytes]:
        old, new = (entry.placeholder or "").encode(), self._spec.prefix.encode()
        check_length(old, new, f"{self._placement.info.file}: {entry.path}")
        digest = hashlib.sha256()
        yield from self._head(entry.path, place, entry, size, executable=executable)
        for piece in replace_binary(chunks(content), old, new):
            digest.update(piece)
            yield piece
        yield padding(size)
        self._note(place, entry, digest.hexdigest(), size)

    def _head(
        self, name: str, place: str, entry: PathEntry, size: int, *, executable: bool
    ) -> Iterator[bytes]:
        made = Entry.file(self._spec.path(place), size, self._spec.mtime, executable=executable)
        self._written[name] = (place, entry, made)
        self.notes.entries += 1
        yield header(made)

    def _note(self, place: str, entry: PathEntry, sha256: str | None, size: int | None) -> None:
        self._paths[place] = InstalledPath(place, entry.path_type, sha256, size, entry)

    def _added(
        self, place: str, data: bytes, path_type: str, *, executable: bool = False
    ) -> Iterator[bytes]:
        if path_type:
            self._paths[place] = InstalledPath(place, path_type, sha256_bytes(data), len(data))
        self.notes.entries += 1
        yield header(
            Entry.file(self._spec.path(place), len(data), self._spec.mtime, executable=executable)
        )
        yield data
        yield padding(len(data))

    def _additions(self) -> Iterator[bytes]:
        placement, python = self._placement, self._placement.python
        for place, entry in placement.places.values():
            if entry.path_type == "directory":
                self._paths[place] = InstalledPath(place, "directory", None, None, entry)
        for place, point in sorted(placement.scripts.items()):
            if python is not None:
                script = entry_point_script(point, self._spec.prefix, python)
                yield from self._added(place, script, "unix_python_entry_point", executable=True)
        for compiled in self._batch.results() if self._batch else ():
            if not compiled.bytecode:
                self.notes.not_compiled.append(compiled.source)
            elif compiled.source not in self._ready and python is not None:
                place = python.bytecode(compiled.source)
                yield from self._added(place, compiled.bytecode, "pyc_file")
        locked = {"sha256": self._spec.sha256, "md5": self._spec.md5, "size": self._spec.size}
        record = prefix_record(placement.info, list(self._paths.values()), locked)
        yield from self._added(placement.record, record, "")


def batched(pieces: Iterator[bytes], size: int = CHUNK) -> Iterator[bytes]:
    """Join small pieces into ones of at most ``size`` bytes; big ones pass as they are."""
    waiting: list[bytes] = []
    length = 0
    for piece in pieces:
        if waiting and length + len(piece) > size:
            yield b"".join(waiting)
            waiting, length = [], 0
        waiting.append(piece)
        length += len(piece)
    if waiting:
        yield b"".join(waiting)
