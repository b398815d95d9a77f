"""Reads archives of untrusted content one member after another: zip, tar, ar, compressed files."""

from __future__ import annotations

import bz2
import enum
import errno
import gzip
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, cast

import zstandard

from assembler.verify.gfx.model import MalformedError
from assembler.verify.gfx.source import MemorySource, Source, buffered, pieces_of, spool
from assembler.verify.gfx.streams import XzStream, ZstdStream

MAX_DIRECTORY = 8 << 20
"""A zip's central directory up to this size (bytes) is read: some 80,000 members."""
MAX_HEADER = 8 << 20
"""Extended tar headers of one member, and ar's name table, take no more bytes than this."""
CONTENT = ""
"""The name of the one member of a compressed file."""
NAMELESS = "(no name)"
TAR_MAGIC_AT = 257

DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, zstandard.ZstdError,
    struct.error, OSError, EOFError, ValueError, OverflowError, LookupError, MemoryError,
    RuntimeError,
)  # fmt: skip
"""What the archive libraries raise on content that is not as it should be."""

Content = Source | MalformedError


class Kind(enum.Enum):
    """Kinds of archives, known by their first bytes."""

    ZIP = "zip"
    TAR = "tar"
    AR = "ar"
    GZIP = "gzip"
    BZIP2 = "bzip2"
    XZ = "xz"
    ZSTD = "zstd"


_MAGICS = (
    (b"PK\x03\x04", Kind.ZIP),
    (b"PK\x05\x06", Kind.ZIP),
    (b"!<arch>\n", Kind.AR),
    (b"\x1f\x8b\x08", Kind.GZIP),
    (b"BZh", Kind.BZIP2),
    (b"\xfd7zXZ\x00", Kind.XZ),
    (b"\x28\xb5\x2f\xfd", Kind.ZSTD),
)


def kind_of(source: Source) -> Kind | None:
    """Say which archive a source is, or None when it is none."""
    head = source.read_at(0, 512)
    for magic, kind in _MAGICS:
        if head.startswith(magic):
            return kind
    return Kind.TAR if _is_tar(head) else None


def _is_tar(head: bytes) -> bool:
    return head[TAR_MAGIC_AT : TAR_MAGIC_AT + 5] == b"ustar"


def open_archive(kind: Kind, source: Source) -> Iterator[tuple[str, Content]]:
    """Yield (name, bytes) of each regular member; the bytes are gone when the next is asked for.

    A member that cannot be read comes as a MalformedError, which is raised when the archive itself
    cannot be read (further).
    """
    if kind is Kind.ZIP:
        yield from _read_zip(source)
    elif kind is Kind.AR:
        yield from _read_ar(source)
    elif kind is Kind.TAR:
        yield from read_tar(cast("IO[bytes]", buffered(source)), plain=source)
    else:
        yield from _read_compressed(kind, source)


def malformed(error: Exception, offset: int = 0) -> MalformedError:
    """Return a library's complaint as a MalformedError.

    Raises the error again when the machine, not the content, is in trouble (a full disk).
    """
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        raise error
    return MalformedError(offset, str(error) or type(error).__name__)


# -- zip -----------------------------------------------------------------------------------------


def _read_zip(source: Source) -> Iterator[tuple[str, Content]]:
    _check_directory(source)
    try:
        archive = zipfile.ZipFile(cast("IO[bytes]", buffered(source)))
    except DAMAGE as error:
        raise malformed(error) from None
    with archive:
        for member in archive.infolist():
            if member.filename.endswith("/"):
                continue
            content = _zip_member(archive, member)
            yield member.filename or NAMELESS, content
            if isinstance(content, Source):
                content.close()


def _check_directory(source: Source) -> None:
    """Refuse a central directory that zipfile would read into memory at once and is too big."""
    start = max(0, source.size - (1 << 16) - 22)
    tail = source.read_at(start, source.size - start)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + 22:
        raise MalformedError(source.size, "no end of central directory")
    (size,) = struct.unpack_from("<I", tail, at + 12)
    if size == 0xFFFFFFFF:
        at64 = tail.rfind(b"PK\x06\x06")
        size = struct.unpack_from("<Q", tail, at64 + 40)[0] if 0 <= at64 <= len(tail) - 48 else size
    if size > MAX_DIRECTORY:
        raise MalformedError(start + at, f"a central directory of {size} bytes")


def _zip_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Content:
    at = max(0, member.header_offset)  # zipfile computes it from fields that may be wrong
    if member.compress_type == zipfile.ZIP_LZMA:
        return MalformedError(at, "LZMA members are not read")
    try:
        with archive.open(member) as stream:
            return spool(pieces_of(stream))
    except MalformedError as error:
        return MalformedError(at, error.reason)
    except DAMAGE as error:
        return malformed(error, at)


# -- tar -----------------------------------------------------------------------------------------


class _Rationed:
    """A stream that gives no more bytes than allowed before it is asked again.

    tarfile reads extended headers into memory whatever their size; the ration bounds them.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._position = 0
        self._last = b""
        self.left = MAX_HEADER

    def ends_at(self, offset: int) -> bool:
        """Whether the block of zeros that ends an archive stands at ``offset``, read just now."""
        at = offset - self._position + len(self._last)
        return at >= 0 and self._last[at : at + 512] == bytes(512)

    def read(self, size: int) -> bytes:
        if self.left <= 0:
            raise MalformedError(0, f"headers of more than {MAX_HEADER} bytes")
        data = self._stream.read(size)
        self.left -= len(data)
        self._position += len(data)
        self._last = self._last[-512:] + data
        return data


def read_tar(
    stream: IO[bytes], *, plain: Source | None = None, whiteouts: set[str] | None = None
) -> Iterator[tuple[str, Content]]:
    """Yield (name, bytes) of each regular file of a tar stream, names cleaned of ``./``.

    Members of a ``plain`` (uncompressed) source are windows of it, others are unpacked one by one.
    OCI whiteouts go into ``whiteouts`` (paths that they hide) when it is given.
    """
    rationed = _Rationed(stream)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", rationed), mode="r|") as archive:
            while True:
                rationed.left = MAX_HEADER
                member = archive.next()
                if member is None:
                    if not rationed.ends_at(archive.offset):
                        raise MalformedError(archive.offset, "the archive is cut off")
                    return
                archive.members = []  # type: ignore[attr-defined]
                archive.pax_headers = {}
                name = _clean(member.name)
                if whiteouts is not None and name.rpartition("/")[2].startswith(".wh."):
                    whiteouts.add(_hidden_by(name))
                    continue
                if not member.isreg():
                    continue
                rationed.left = member.size + MAX_HEADER
                content = _tar_member(archive, member, plain)
                yield name, content
                content.close()
    except DAMAGE as error:
        raise malformed(error) from None


def _tar_member(archive: tarfile.TarFile, member: tarfile.TarInfo, plain: Source | None) -> Source:
    if plain is not None and not member.issparse():
        if member.offset_data + member.size > plain.size:
            raise MalformedError(member.offset_data, f"{member.name} is cut off")
        return plain.window(member.offset_data, member.size)
    stream = archive.extractfile(member)
    return spool(pieces_of(stream)) if stream is not None else MemorySource(b"")


def _clean(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return "/".join(parts) or NAMELESS


def _hidden_by(whiteout: str) -> str:
    folder, _, name = whiteout.rpartition("/")
    if name == ".wh..wh..opq":
        return folder
    return f"{folder}/{name[4:]}" if folder else name[4:]


# -- compressed files ----------------------------------------------------------------------------


def _read_compressed(kind: Kind, source: Source) -> Iterator[tuple[str, Content]]:
    """Read a compressed tar, or a compressed file as one member without a name."""
    packed = buffered(source)
    try:
        stream = _inflate(kind, packed)
        head = _peek(stream)
        whole = cast("IO[bytes]", _Joined(head, stream))
        if _is_tar(head):
            yield from read_tar(whole)
            return
        content = spool(pieces_of(whole))
    except DAMAGE as error:
        raise malformed(error) from None
    with content:
        yield CONTENT, content


def _inflate(kind: Kind, packed: Any) -> Any:
    if kind is Kind.GZIP:
        return gzip.GzipFile(fileobj=packed)
    if kind is Kind.BZIP2:
        return bz2.BZ2File(packed)
    if kind is Kind.XZ:
        return XzStream(packed)
    return ZstdStream(packed)


def _peek(stream: Any) -> bytes:
    head = b""
    while len(head) < 512 and (more := stream.read(512 - len(head))):
        head += more
    return head


class _Joined:
    """Bytes that were read already, then the rest of their stream."""

    def __init__(self, head: bytes, stream: Any) -> None:
        self._head = head
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        return cast("bytes", self._stream.read(size))


# -- ar ------------------------------------------------------------------------------------------


def _read_ar(source: Source) -> Iterator[tuple[str, Content]]:
    """Read System V / GNU archives: 60-byte headers, long names in the member ``//``."""
    names = b""
    at = 8
    while at < source.size:
        header = source.exactly(at, 60, "archive member header")
        if header[58:] != b"`\n":
            raise MalformedError(at + 58, "an archive member's header does not end as it must")
        try:
            size = int(header[48:58])
        except ValueError:
            raise MalformedError(at + 48, "an archive member's size is no number") from None
        start = at + 60
        if size < 0 or start + size > source.size:
            raise MalformedError(at, f"an archive member ends at {start + size} of {source.size}")
        raw = header[:16].rstrip(b" ")
        at = start + size + (size & 1)
        if raw == b"//":
            names = source.read_at(start, min(size, MAX_HEADER))
            continue
        if raw in (b"/", b"/SYM64/", b"__.SYMDEF"):
            continue
        name, skip = _ar_name(raw, names, source, start, size)
        yield name or NAMELESS, source.window(start + skip, size - skip)


def _ar_name(raw: bytes, names: bytes, source: Source, start: int, size: int) -> tuple[str, int]:
    if raw.startswith(b"#1/") and raw[3:].isdigit():  # BSD: the name stands before the content
        length = min(int(raw[3:]), size, 4096)
        return os.fsdecode(source.read_at(start, length).rstrip(b"\0")), length
    if raw.startswith(b"/") and raw[1:].isdigit():
        offset = int(raw[1:])
        end = names.find(b"\n", offset)
        return os.fsdecode(names[offset : end if end >= 0 else None].rstrip(b"/\n")), 0
    return os.fsdecode(raw.rstrip(b"/")), 0
