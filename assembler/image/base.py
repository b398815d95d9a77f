"""The image's bottom layer: a distroless-like Debian base, made from pinned .deb files in memory.

Beside the packages' files it holds what a container needs and maintainer scripts would have made:
users, name service, certificates, the loader's cache, /tmp and the user's home. The prefix's
libraries are not in that cache: they are found by RPATH.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from assembler.digest import digest_of, sha256_bytes
from assembler.errors import ImageError
from assembler.image.compression import Codec
from assembler.image.debian import (
    MERGED,
    DebPackage,
    Tree,
    drop_dangling,
    entries_of,
    newest,
    read_deb,
    read_slimming,
    record,
)
from assembler.image.entry import Entry, Kind, check_path, header, padding, parents, show
from assembler.image.interpreter import LazyInterpreter
from assembler.image.ldcache import PATH, Library, cache_bytes, read_library
from assembler.image.segment import Notes
from assembler.sources.pins import Pin
from assembler.sources.store import Store

BASE_FORMAT = 2
BUSYBOX, SHELL = b"usr/bin/busybox", b"usr/bin/sh"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
_MOZILLA = "usr/share/ca-certificates/mozilla/"


@dataclass(frozen=True)
class User:
    """Whom the image runs as."""

    uid: int
    gid: int
    home: str

    @classmethod
    def of(cls, user: str, home: str) -> User:
        """Return the user of stack.toml's ``uid:gid``; ImageError when it is root."""
        uid, gid = map(int, user.split(":"))
        if uid == 0:
            raise ImageError("the image would run as root", remedy="set a user other than 0:0")
        return cls(uid, gid, home)


@dataclass(frozen=True)
class BaseSource:
    """The base as a layer's source: pinned packages in the store, and the user made for them."""

    pins: tuple[Pin, ...]
    store: Store
    user: User
    latest: int | None
    name: str = field(default="base", init=False)

    def key(self, codec: Codec) -> str:
        """Return the content key: pins, rules and settings; the packages are not opened."""
        return digest_of(
            {
                "packages": sorted(pin.sha256 for pin in self.pins),
                "rules": sha256_bytes(read_slimming().source),
                "user": [self.user.uid, self.user.gid, self.user.home],
                "latest": self.latest,
                "compression": codec.label,
                "format": BASE_FORMAT,
            }
        )

    def stream(self, interpreter: LazyInterpreter) -> tuple[Iterable[bytes], Notes]:
        """Return the layer's tar bytes and its notes."""
        notes = Notes()
        return self._pieces(notes), notes

    def _pieces(self, notes: Notes) -> Iterator[bytes]:
        packages = [read_deb(_stored(self.store, pin), pin.label) for pin in self.pins]
        tree = build_tree(packages, self.user, self.latest)
        for path in sorted(tree.entries):
            entry, content = tree.entries[path]
            notes.entries += 1
            yield header(entry) + content + padding(entry.size)


def _stored(store: Store, pin: Pin) -> Path:
    path = store.path(pin.sha256)
    if path.exists() and not store.verify(pin.sha256):
        raise ImageError(
            f"the stored file of the base package {pin.label} was damaged and has been removed",
            remedy="run `assembler fetch` to get it again",
        )
    return path


def build_tree(packages: Sequence[DebPackage], user: User, latest: int | None = None) -> Tree:
    """Return the base's entries; times are the newest of the packages, and not after ``latest``."""
    slimming = read_slimming()
    mtime = newest(packages)
    mtime = mtime if latest is None else min(mtime, latest)
    tree = Tree()
    for name, target in MERGED.items():
        tree.add(Entry.symlink(name, target, mtime), b"", "the base")
        tree.add(Entry.directory(target, mtime), b"", "the base")
    for package in sorted(packages, key=lambda item: item.name):
        for entry, content in entries_of(package, slimming, mtime):
            tree.add(entry, content, package.name)
    drop_dangling(tree, b"usr/share/doc/")
    _prune(tree, (b"usr/share/", b"usr/lib/", b"usr/bin/", b"usr/sbin/", b"etc/"))
    for package in packages:
        record(tree, package, mtime)
    _configure(tree, packages, user, mtime)
    tree.complete(mtime)
    _check(tree)
    return tree


def _prune(tree: Tree, roots: tuple[bytes, ...]) -> None:
    """Remove folders that slimming has emptied."""
    used = {folder for path, (entry, _) in tree.entries.items() for folder in parents(path)
            if entry.kind is not Kind.DIRECTORY}  # fmt: skip
    for path, (entry, _) in list(tree.entries.items()):
        if entry.kind is Kind.DIRECTORY and path.startswith(roots) and path not in used:
            del tree.entries[path]


def _configure(tree: Tree, packages: Sequence[DebPackage], user: User, mtime: int) -> None:
    tree.put(
        "etc/passwd",
        (
            "root:x:0:0:root:/root:/sbin/nologin\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n"
            f"nonroot:x:{user.uid}:{user.gid}:nonroot:{user.home}:/sbin/nologin\n"
        ).encode(),
        mtime,
    )
    tree.put(
        "etc/group",
        f"root:x:0:\ntty:x:5:\nnogroup:x:65534:\nnonroot:x:{user.gid}:\n".encode(),
        mtime,
    )
    certificates: list[tuple[str, bytes]] = []
    switch: bytes | None = None
    for package in packages:
        for info, data in package.members:
            name = info.name.removeprefix("./")
            if name.startswith(_MOZILLA) and name.endswith(".crt"):
                certificates.append((name, data.rstrip(b"\n") + b"\n"))
            elif name == "usr/share/libc-bin/nsswitch.conf":
                switch = data
    if certificates:
        tree.put(CERTIFICATES, b"".join(data for _, data in sorted(certificates)), mtime)
    # What libc-bin's script would copy; without it glibc asks DNS before /etc/hosts.
    tree.put("etc/nsswitch.conf", switch or b"hosts: files dns\n", mtime)
    if BUSYBOX in tree.entries and SHELL not in tree.entries:
        # Debian's busybox has no links; its shell finds the other programs inside itself.
        tree.entries[SHELL] = Entry.symlink(SHELL, b"busybox", mtime), b""
    tree.put(PATH, cache_bytes(_libraries(tree)), mtime)
    for folder in (b"tmp", b"var/tmp"):
        tree.entries[folder] = Entry.directory(folder, mtime, 0o1777), b""
    home = check_path(user.home.strip("/").encode(), "stack.toml's workdir")
    tree.entries[home] = (
        Entry(home, Kind.DIRECTORY, 0o755, mtime, uid=user.uid, gid=user.gid),
        b"",
    )


def _libraries(tree: Tree) -> Iterator[Library]:
    """Yield the shared libraries in the loader's own folders, by the names they are asked for."""
    for path, (entry, content) in tree.entries.items():
        folder = path.rpartition(b"/")[0]
        if entry.kind is Kind.FILE and path.startswith(b"usr/lib/") and path.count(b"/") <= 3:
            library = read_library(f"/{show(path)}", content)
            if library is not None:
                link = folder + b"/" + library.soname.encode()
                if link in tree.entries:
                    yield replace(library, path=f"/{show(link)}")


def _check(tree: Tree) -> None:
    """Raise ImageError when a path lies below something that is not a directory."""
    for path in tree.entries:
        for folder in parents(path):
            if tree.entries[folder][0].kind is not Kind.DIRECTORY:
                raise ImageError(
                    f"the base holds {path!r} below {folder!r}, which is not a directory",
                    remedy="leave one of its packages out of the profile's base",
                )
