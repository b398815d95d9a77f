"""What the gates look at: a read-only tree of files, however it was packed.

A tree is the file system of an image, or the content of a package or folder. Its entries carry the
metadata that the archive gave (mode bits, owner, time), which the scratch copy on disk need not
have; the bytes are read from the scratch copy. Paths are relative, with ``/`` between components
and no leading slash; bytes that are not UTF-8 stand as surrogate escapes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from assembler.verify.config import ImageConfig
from assembler.verify.oci import OciImage

Kind = Literal["file", "directory", "symlink", "other"]
TreeKind = Literal["image", "conda", "wheel", "folder"]

MAX_LINKS = 40
"""Symbolic links that a path may pass through, as in Linux (``MAXSYMLINKS``)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, directory or link.

    ``mode`` holds the permission bits with setuid, setgid and sticky (0o7777), ``size`` is in
    bytes and 0 for what is not a file, ``target`` is a symbolic link's text, ``hardlink`` the path
    of the entry that a hard link shares its bytes with, ``mtime`` seconds since 1970, ``layer``
    the position of the image layer that brought it (0 is the lowest).
    """

    path: str
    kind: Kind
    mode: int
    size: int = 0
    target: str | None = None
    hardlink: str | None = None
    uid: int = 0
    gid: int = 0
    mtime: float = 0
    layer: int = 0

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rpartition("/")[2]

    @property
    def executable(self) -> bool:
        """Whether it is a file that somebody may execute."""
        return self.kind == "file" and bool(self.mode & 0o111)


@dataclass(frozen=True, eq=False)
class Tree:
    """Entries by path, and where their bytes lie.

    ``label`` is what people call it (the path that they gave), ``origin`` that path, ``root`` the
    scratch copy (or the folder itself), ``prefix`` the conda environment inside it ("" for a
    package, ``opt/atom`` in an image, None when there is none).
    """

    label: str
    kind: TreeKind
    origin: Path
    root: Path
    entries: Mapping[str, Entry]
    digest: str | None = None
    config: ImageConfig | None = None
    image: OciImage | None = None
    prefix: str | None = None
    info: Path | None = None
    """The unpacked ``info/`` folder of a conda package."""

    def files(self) -> Iterator[Entry]:
        """Yield the regular files in path order; hard links to one file come once each."""
        for path in sorted(self.entries):
            if self.entries[path].kind == "file":
                yield self.entries[path]

    def on_disk(self, path: str) -> Path:
        """Return where the bytes of ``path`` lie; the entry must be a file."""
        entry = self.entries[path]
        if entry.kind != "file":
            raise KeyError(f"{path} is not a file")
        return self.root / path

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading."""
        return self.on_disk(path).open("rb")

    def read(self, path: str, limit: int = 1 << 26) -> bytes:
        """Return a file's bytes, at most ``limit`` of them."""
        with self.open(path) as stream:
            return stream.read(limit)

    def resolve(self, path: str) -> str | None:
        """Follow links as the kernel does inside this root; None when the path leads nowhere.

        Absolute link targets start at the tree's root, and ``..`` stops there.
        """
        done: list[str] = []
        left = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        links = 0
        while left:
            part = left.pop()
            if part == "..":
                if done:
                    done.pop()
                continue
            entry = self.entries.get("/".join([*done, part]))
            if entry is None:
                return None
            if entry.target is None:
                done.append(part)
                continue
            links += 1
            if links > MAX_LINKS:
                return None
            if entry.target.startswith("/"):
                done.clear()
            left.extend(step for step in reversed(entry.target.split("/")) if step not in ("", "."))
        return "/".join(done)

    def exists(self, path: str) -> bool:
        """Whether the path, with links followed, is there."""
        return self.resolve(path) is not None

    def file_at(self, path: str) -> Entry | None:
        """Return the regular file that a path leads to, or None."""
        found = self.resolve(path)
        entry = self.entries.get(found) if found else None
        return entry if entry is not None and entry.kind == "file" else None

    def under(self, folder: str) -> Iterator[Entry]:
        """Yield every entry below ``folder`` (itself not) in path order."""
        start = f"{folder.rstrip('/')}/" if folder else ""
        for path in sorted(self.entries):
            if path.startswith(start):
                yield self.entries[path]

    def search_path(self) -> tuple[str, ...]:
        """Return the folders of the image's PATH, as tree paths."""
        path = self.config.env.get("PATH", "") if self.config else ""
        return tuple(posixpath.normpath(part).lstrip("/") for part in path.split(":") if part)

    def which(self, program: str) -> str | None:
        """Return the tree path of an executable on the image's PATH, or None."""
        for folder in self.search_path():
            entry = self.file_at(f"{folder}/{program}")
            if entry is not None and entry.executable:
                return entry.path
        return None
