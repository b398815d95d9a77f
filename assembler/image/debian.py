"""Debian packages as a tree of entries: read, merged below /usr and slimmed, without dpkg or root.

No maintainer script runs; what scripts would do that a container needs is done in ``base``. Which
packages are inside is recorded under var/lib/dpkg/status.d, where scanners of distroless images
look. Sources: deb(5); Debian's usr-merge; distroless' layout of status.d.
"""

from __future__ import annotations

import re
import stat
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path

from debian.arfile import ArError
from debian.debfile import DebError, DebFile

from assembler.errors import ImageError
from assembler.image.entry import Entry, Kind, check_path, parents, show

# Directories at the root that are links into /usr; no layer may hold a path below one of them.
MERGED = {name: b"usr/" + name for name in (b"bin", b"sbin", b"lib", b"lib64")}
STATUS = "var/lib/dpkg/status.d"


@dataclass(frozen=True)
class Rule:
    """A named reason to leave files out."""

    id: str
    reason: str
    drop: tuple[str, ...]
    keep: tuple[str, ...] = ()
    package: str | None = None

    def drops(self, package: str, path: str) -> bool:
        """Tell whether the rule leaves a package's file out."""
        return (
            self.package in (None, package)
            and any(fnmatchcase(path, pattern) for pattern in self.drop)
            and not any(fnmatchcase(path, pattern) for pattern in self.keep)
        )


@dataclass(frozen=True)
class Slimming:
    """The rules and the directory modes of slimming.toml, and that file's own bytes."""

    rules: tuple[Rule, ...]
    modes: Mapping[str, int]
    source: bytes

    def drops(self, package: str, path: str) -> bool:
        """Tell whether any rule leaves a package's file out."""
        return any(rule.drops(package, path) for rule in self.rules)


@cache
def read_slimming() -> Slimming:
    """Return the rules that come with the assembler."""
    source = files("assembler.image").joinpath("slimming.toml").read_bytes()
    data = tomllib.loads(source.decode())
    rules = tuple(
        Rule(
            item["id"],
            item["reason"],
            tuple(item["drop"]),
            tuple(item.get("keep", ())),
            item.get("package"),
        )
        for item in data["rule"]
    )
    return Slimming(rules, data["modes"], source)


@dataclass
class Tree:
    """Entries by path with their content; later ones may only repeat directories."""

    entries: dict[bytes, tuple[Entry, bytes]] = field(default_factory=dict)

    def add(self, entry: Entry, content: bytes, owner: str) -> None:
        """Add an entry; ImageError when another package has its path."""
        known = self.entries.get(entry.path)
        if known is not None:
            both = (known[0].kind, entry.kind)
            if both == (Kind.DIRECTORY, Kind.DIRECTORY):
                return
            if both != (Kind.SYMLINK, Kind.SYMLINK) or known[0].target != entry.target:
                raise ImageError(
                    f"{owner} and another base package both hold {show(entry.path)}",
                    remedy="leave one of them out of the profile's base packages",
                )
        self.entries[entry.path] = entry, content

    def put(self, path: str, data: bytes, mtime: int) -> None:
        """Set a file made here, with the directories above it."""
        name = path.encode()
        for folder in parents(name):
            self.entries.setdefault(folder, (Entry.directory(folder, mtime), b""))
        self.entries[name] = Entry.file(name, len(data), mtime), data

    def complete(self, mtime: int) -> None:
        """Add every missing parent directory."""
        for path in list(self.entries):
            for folder in parents(path):
                self.entries.setdefault(folder, (Entry.directory(folder, mtime), b""))

    def read(self, path: str) -> bytes | None:
        """Return a file's content, or None when it is not there."""
        found = self.entries.get(path.encode())
        return found[1] if found else None


@dataclass(frozen=True)
class DebPackage:
    """A Debian package in memory: its control text, its md5sums and its members."""

    name: str
    version: str
    control: bytes
    md5sums: bytes
    newest: int
    members: tuple[tuple[tarfile.TarInfo, bytes], ...]


def _content(data: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    stream = data.extractfile(info) if info.isreg() else None
    return stream.read() if stream else b""


def _optional(deb: DebFile, name: str) -> bytes:
    content = deb.control.get_content(name) if deb.control.has_file(name) else b""
    return bytes(content or b"")


def read_deb(path: Path, name: str) -> DebPackage:
    """Read a .deb whole; ImageError when it is damaged. Base packages are a few MB each."""
    try:
        with path.open("rb") as stream:
            deb = DebFile(fileobj=stream)
            control = _optional(deb, "control")
            fields = deb.debcontrol()
            data = deb.data.tgz()
            members = tuple((info, _content(data, info)) for info in data)
            return DebPackage(
                str(fields["Package"]),
                str(fields["Version"]),
                control.strip() + b"\n",
                _optional(deb, "md5sums"),
                max((int(info.mtime) for info, _ in members), default=0),
                members,
            )
    except FileNotFoundError:
        raise ImageError(
            f"the base package {name} is not in the store", remedy="run `assembler fetch`"
        ) from None
    except (ArError, DebError, tarfile.TarError, EOFError, KeyError, ValueError) as error:
        raise ImageError(
            f"the base package {name} in the store is damaged ({error})",
            remedy=f"remove {path} and run `assembler fetch`",
        ) from None


def merged(path: bytes) -> bytes:
    """Return a path with its first part below /usr where Debian merged that directory.

    >>> merged(b"lib64/ld-linux-x86-64.so.2")
    b'usr/lib64/ld-linux-x86-64.so.2'
    """
    first, slash, rest = path.partition(b"/")
    return MERGED[first] + slash + rest if slash and first in MERGED else path


def entries_of(
    package: DebPackage, slimming: Slimming, mtime: int
) -> Iterator[tuple[Entry, bytes]]:
    """Yield what stays of a package, in its own order; hard links become files of their own."""
    contents: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    for info, data in package.members:
        name = info.name.removeprefix("./").strip("/")
        if name in ("", "."):
            continue
        contents[name] = (info, data)
        path = merged(check_path(name.encode("utf-8", "surrogateescape"), package.name))
        if path in MERGED or slimming.drops(package.name, show(path)):
            continue
        yield _entry(package, info, data, path, contents, slimming, mtime)


def _entry(
    package: DebPackage,
    info: tarfile.TarInfo,
    data: bytes,
    path: bytes,
    contents: Mapping[str, tuple[tarfile.TarInfo, bytes]],
    slimming: Slimming,
    mtime: int,
) -> tuple[Entry, bytes]:
    if info.isdir():
        return Entry.directory(path, mtime, slimming.modes.get(show(path), 0o755)), b""
    if info.issym():
        return Entry.symlink(path, info.linkname.encode("utf-8", "surrogateescape"), mtime), b""
    if info.islnk():
        wanted = info.linkname.removeprefix("./").strip("/")
        if wanted not in contents:
            raise ImageError(
                f"the base package {package.name} holds a hard link to {wanted}, which it lacks",
                remedy="leave it out of the profile's base packages",
            )
        info, data = contents[wanted]
    elif not info.isreg():
        raise ImageError(
            f"the base package {package.name} holds {show(path)}, which is a device or a pipe",
            remedy="leave it out of the profile's base packages",
        )
    executable = bool(info.mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH))
    return Entry.file(path, len(data), mtime, executable=executable), data


def record(tree: Tree, package: DebPackage, mtime: int) -> None:
    """Write a package's entry of status.d, with the checksums of the files that are there."""
    name = re.sub(r"[^A-Za-z0-9.+-]", "_", package.name)
    tree.put(f"{STATUS}/{name}", package.control, mtime)
    lines = package.md5sums.splitlines(keepends=True)
    kept = [line for line in lines if _target(line) in tree.entries]
    tree.put(f"{STATUS}/{name}.md5sums", b"".join(kept), mtime)


def _target(line: bytes) -> bytes:
    return merged(line.rstrip(b"\n").partition(b"  ")[2])


def drop_dangling(tree: Tree, below: bytes) -> None:
    """Remove symbolic links below a folder whose targets were left out."""
    for path, (entry, _) in list(tree.entries.items()):
        if entry.kind is Kind.SYMLINK and path.startswith(below):
            target = path.rpartition(b"/")[0] + b"/" + entry.target
            if b".." in entry.target or target not in tree.entries:
                del tree.entries[path]


def newest(packages: Iterable[DebPackage]) -> int:
    """Return the newest time in the packages, in seconds since 1970."""
    return max((package.newest for package in packages), default=0)
