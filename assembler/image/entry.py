"""Tar entries with one spelling: the same entry is the same bytes on every machine.

The form is POSIX ustar; a PAX record comes before an entry only for what ustar cannot hold (a path
over 255 bytes, a link target over 100, 8 GiB or more, a time after the year 2242). Owner and group
names are always empty. Names are bytes and written as they are: Linux file names need not be UTF-8.
Source: POSIX.1-2017 pax, "ustar Interchange Format"; OCI image-spec 1.1, layer.md.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from assembler.errors import ImageError

BLOCK = 512
END_OF_ARCHIVE = bytes(2 * BLOCK)
WHITEOUT = b".wh."
DIRECTORY_MODE = 0o755
FILE_MODE = 0o644
EXECUTABLE_MODE = 0o755
SYMLINK_MODE = 0o777

_NAME = 100
_PREFIX = 155
_OCTAL_11 = 8**11  # first number that an 11-digit octal field cannot hold


class Kind(enum.Enum):
    """What an entry is; the value is ustar's typeflag."""

    FILE = b"0"
    HARDLINK = b"1"
    SYMLINK = b"2"
    DIRECTORY = b"5"


@dataclass(frozen=True)
class Entry:
    """One file, directory or link of a layer.

    ``path`` is relative to the image's root, without a trailing slash; ``size`` is the number of
    content bytes that follow (files only); ``target`` is a symlink's text or a hard link's path.
    """

    path: bytes
    kind: Kind
    mode: int
    mtime: int
    size: int = 0
    target: bytes = b""
    uid: int = 0
    gid: int = 0

    @classmethod
    def directory(
        cls, path: bytes, mtime: int, mode: int = DIRECTORY_MODE, owner: int = 0
    ) -> Entry:
        """Return the entry of a directory; ``owner`` is both its uid and gid."""
        return cls(path, Kind.DIRECTORY, mode, mtime, uid=owner, gid=owner)

    @classmethod
    def file(cls, path: bytes, size: int, mtime: int, *, executable: bool = False) -> Entry:
        """Return the entry of a regular file of ``size`` bytes."""
        return cls(path, Kind.FILE, EXECUTABLE_MODE if executable else FILE_MODE, mtime, size=size)

    @classmethod
    def symlink(cls, path: bytes, target: bytes, mtime: int) -> Entry:
        """Return the entry of a symbolic link."""
        return cls(path, Kind.SYMLINK, SYMLINK_MODE, mtime, target=target)


def padding(size: int) -> bytes:
    """Return the zero bytes that follow ``size`` bytes of content."""
    return bytes(-size % BLOCK)


def parents(path: bytes) -> tuple[bytes, ...]:
    """Return every directory above a path, outermost first.

    >>> parents(b"a/b/c")
    (b'a', b'a/b')
    """
    parts = path.split(b"/")
    return tuple(b"/".join(parts[:end]) for end in range(1, len(parts)))


def show(path: bytes) -> str:
    """Return a path for messages, whatever its bytes."""
    return path.decode("utf-8", "backslashreplace")


def check_path(path: bytes, owner: str) -> bytes:
    """Return a relative path in its plain form; ImageError when no layer may hold it.

    ``owner`` is the package named in the message. Refused are absolute paths, ``..``, NUL and
    names starting with ``.wh.``, which would delete files of lower layers.
    """
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if not parts or path.startswith(b"/") or b".." in parts or b"\0" in path:
        raise ImageError(
            f"{owner} holds the path {show(path)!r}, which leads out of its prefix",
            remedy="build that package again without it",
        )
    if any(part.startswith(WHITEOUT) for part in parts):
        raise ImageError(
            f"{owner} holds {show(path)!r}, and engines read names starting with .wh. as deletions",
            remedy="build that package again without it",
        )
    return b"/".join(parts)


def _octal(value: int, width: int) -> bytes:
    return b"%0*o\0" % (width - 1, value)


def _record(keyword: bytes, value: bytes) -> bytes:
    body = b" " + keyword + b"=" + value + b"\n"
    length = 0
    # The length counts its own digits.
    while length != len(body) + len(b"%d" % length):
        length = len(body) + len(b"%d" % length)
    return b"%d" % length + body


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """Return ustar's (prefix, name) fields, or None when the path fits neither way."""
    if len(name) <= _NAME:
        return b"", name
    cut = name.rfind(b"/", 0, min(_PREFIX, len(name) - 2) + 1)
    if cut <= 0 or len(name) - cut - 1 > _NAME:
        return None
    return name[:cut], name[cut + 1 :]


def _ustar(
    fields: tuple[bytes, bytes], entry: Entry, flag: bytes, size: int, mtime: int, target: bytes
) -> bytes:
    prefix, name = fields
    block = struct.pack(
        "100s8s8s8s12s12s8s1s100s8s32s32s8s8s155s12x",
        name,
        _octal(entry.mode, 8),
        _octal(entry.uid, 8),
        _octal(entry.gid, 8),
        _octal(size, 12),
        _octal(mtime, 12),
        b" " * 8,
        flag,
        target,
        b"ustar\x0000",
        b"",
        b"",
        b"",
        b"",
        prefix,
    )
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def header(entry: Entry) -> bytes:
    """Return an entry's header: one block, or three and more when it needs PAX records."""
    name = entry.path + b"/" if entry.kind is Kind.DIRECTORY else entry.path
    records: list[bytes] = []
    fields = _split(name)
    if fields is None:
        records.append(_record(b"path", name))
        fields = b"", name[:_NAME]
    target = entry.target
    if len(target) > _NAME:
        records.append(_record(b"linkpath", target))
        target = target[:_NAME]
    size, mtime = entry.size, entry.mtime
    if mtime >= _OCTAL_11:
        records.append(_record(b"mtime", b"%d" % mtime))
        mtime = 0
    if size >= _OCTAL_11:
        records.append(_record(b"size", b"%d" % size))
        size = 0
    if not records:
        return _ustar(fields, entry, entry.kind.value, size, mtime, target)
    data = b"".join(sorted(records))
    extended = Entry(b"././@PaxHeader", Kind.FILE, FILE_MODE, 0)
    return (
        _ustar((b"", extended.path), extended, b"x", len(data), 0, b"")
        + data
        + padding(len(data))
        + _ustar(fields, entry, entry.kind.value, size, mtime, target)
    )
