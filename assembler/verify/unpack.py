"""Applies an image's layers, or a package's archive, to a scratch folder and lists what came out.

Semantics are those that docker and podman showed when tried: whiteouts (``.wh.x``) and opaque
markers (``.wh..wh..opq``) act on lower layers only; a file beneath a path that is a symbolic link
replaces the link by a directory; a hard link's target must have come before it. Nothing is ever
written outside the scratch folder: parents are looked up in the list of what was made here, never
through a link on the disk. Device nodes and pipes are listed, not made.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from assembler.digest import CHUNK
from assembler.errors import ImageError
from assembler.verify.tree import Entry, Kind

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"


class Unpacker:
    """A scratch folder being filled; ``entries`` is what is in it so far."""

    def __init__(self, root: Path, *, advance: Callable[[int], None] | None = None) -> None:
        self.root = root
        self.entries: dict[str, Entry] = {}
        self._children: dict[str, set[str]] = {}
        self._advance = advance or (lambda _: None)
        root.mkdir(parents=True, exist_ok=True)
        self._own = os.geteuid() == 0 and _may_give_away(root)

    # -- what archives bring -----------------------------------------------------------------

    def add_tar(self, stream: IO[bytes], *, layer: int = 0) -> None:
        """Apply one layer, an uncompressed tar stream; ImageError when it is damaged."""
        try:
            with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK, errorlevel=2) as archive:
                for member in archive:
                    self._add_member(archive, member, layer)
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise ImageError(
                f"a tar archive is damaged ({error})", remedy="make it again"
            ) from None
        except OSError as error:
            raise _not_unpacked(error) from None

    def add_zip(self, archive: zipfile.ZipFile) -> None:
        """Add the members of a zip archive (a wheel)."""
        try:
            self._add_members(archive)
        except OSError as error:
            raise _not_unpacked(error) from None

    def _add_members(self, archive: zipfile.ZipFile) -> None:
        for item in archive.infolist():
            path = self._clean(item.filename)
            if not path:
                continue
            mode = (item.external_attr >> 16) & 0o7777
            if item.is_dir():
                self._directory(Entry(path, "directory", mode or 0o755))
                continue
            with archive.open(item) as stream:
                self._file(Entry(path, "file", mode or 0o644, item.file_size), stream)

    def _add_member(self, archive: tarfile.TarFile, member: tarfile.TarInfo, layer: int) -> None:
        path = self._clean(member.name)
        if not path:
            return
        folder, _, name = path.rpartition("/")
        if name == OPAQUE:
            for child in sorted(self._children.get(folder, ())):
                self._remove_lower(f"{folder}/{child}" if folder else child, layer)
            return
        if name.startswith(WHITEOUT):
            hidden = name.removeprefix(WHITEOUT)
            self._remove_lower(f"{folder}/{hidden}" if folder else hidden, layer)
            return
        entry = Entry(
            path=path,
            kind=_kind(member),
            mode=member.mode & 0o7777,
            size=member.size if member.isreg() else 0,
            target=member.linkname if member.issym() else None,
            uid=member.uid,
            gid=member.gid,
            mtime=member.mtime,
            layer=layer,
        )
        if member.islnk():
            self._hardlink(entry, self._clean(member.linkname))
        elif entry.kind == "directory":
            self._directory(entry)
        elif entry.kind == "symlink":
            self._symlink(entry)
        elif entry.kind == "file":
            stream = archive.extractfile(member)
            assert stream is not None
            self._file(entry, stream)
        else:
            self._prepare(entry)
            self._list(entry)

    def finish(self) -> None:
        """Give folders the modes and owners that were listed, deepest first.

        Only now, since a folder that is closed could not have been filled. Without root, folders
        and files stay readable for the caller.
        """
        for path in sorted(self.entries, key=len, reverse=True):
            entry = self.entries[path]
            if entry.kind != "directory":
                continue
            place = self.root / path
            if self._own:
                os.chown(place, entry.uid, entry.gid)
                place.chmod(entry.mode & 0o1777)
            else:
                place.chmod(entry.mode & 0o1777 | stat.S_IRWXU)

    # -- single entries ----------------------------------------------------------------------

    def _directory(self, entry: Entry) -> None:
        old = self.entries.get(entry.path)
        if old is None or old.kind != "directory":
            self._prepare(entry)
            (self.root / entry.path).mkdir()
        self._list(entry)

    def _symlink(self, entry: Entry) -> None:
        self._prepare(entry)
        assert entry.target is not None
        (self.root / entry.path).symlink_to(entry.target)
        if self._own:
            os.chown(self.root / entry.path, entry.uid, entry.gid, follow_symlinks=False)
        self._list(entry)

    def _hardlink(self, entry: Entry, target: str) -> None:
        source = self.entries.get(target)
        if source is None or source.kind not in ("file", "symlink"):
            raise ImageError(
                f"the hard link {entry.path} comes before its target {target}",
                remedy="make the image again: no container engine can unpack this layer",
            )
        if source.layer != entry.layer:
            raise ImageError(
                f"the hard link {entry.path} leads into a lower layer ({target})",
                remedy="make the image again: docker and podman refuse this layer",
            )
        self._prepare(entry)
        os.link(self.root / target, self.root / entry.path, follow_symlinks=False)
        self._list(
            Entry(
                entry.path, source.kind, source.mode, source.size, source.target,
                hardlink=source.hardlink or source.path, uid=source.uid, gid=source.gid,
                mtime=source.mtime, layer=entry.layer,
            )
        )  # fmt: skip

    def _file(self, entry: Entry, stream: IO[bytes]) -> None:
        self._prepare(entry)
        place = self.root / entry.path
        # setuid and setgid bits stay in the list; the copy on disk must not carry them.
        mode = entry.mode & 0o777
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(place, flags, 0o600), "wb") as out:
            while data := stream.read(CHUNK):
                out.write(data)
                self._advance(len(data))
            if self._own:
                os.fchown(out.fileno(), entry.uid, entry.gid)
                os.fchmod(out.fileno(), mode)
            else:
                os.fchmod(out.fileno(), mode | stat.S_IRUSR)
        self._list(entry)

    # -- bookkeeping -------------------------------------------------------------------------

    def _clean(self, name: str) -> str:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ImageError(
                f"an archive holds the path {name!r}, which leads out of it",
                remedy="do not use this file",
            )
        return "/".join(parts)

    def _prepare(self, entry: Entry) -> None:
        folder = entry.path.rpartition("/")[0]
        if folder and getattr(self.entries.get(folder), "kind", None) != "directory":
            self._directory(Entry(folder, "directory", 0o755, layer=entry.layer))
        old = self.entries.get(entry.path)
        if old is None:
            return
        if old.layer == entry.layer and old.kind == entry.kind and entry.kind != "directory":
            raise ImageError(
                f"an archive holds {entry.path} twice",
                remedy="make it again: docker and podman refuse this layer",
            )
        self._remove(entry.path)

    def _list(self, entry: Entry) -> None:
        self.entries[entry.path] = entry
        folder, _, name = entry.path.rpartition("/")
        self._children.setdefault(folder, set()).add(name)

    def _remove(self, path: str) -> None:
        entry = self.entries.pop(path)
        folder, _, name = path.rpartition("/")
        self._children.get(folder, set()).discard(name)
        if entry.kind == "directory":
            for child in sorted(self._children.pop(path, ())):
                self._remove(f"{path}/{child}")
            (self.root / path).rmdir()
        elif entry.kind != "other":
            (self.root / path).unlink()

    def _remove_lower(self, path: str, layer: int) -> None:
        entry = self.entries.get(path)
        if entry is None:
            return
        if entry.kind == "directory":
            for child in sorted(self._children.get(path, ())):
                self._remove_lower(f"{path}/{child}", layer)
            if self._children.get(path):
                return
        if entry.layer < layer:
            self._remove(path)


def _may_give_away(folder: Path) -> bool:
    """Whether root may change owners here (not so in some containers and network folders)."""
    try:
        os.chown(folder, 65534, 65534)
        os.chown(folder, 0, 0)
    except OSError:
        return False
    return True


def _not_unpacked(error: OSError) -> Exception:
    """Return a full disk, or what the kernel did not say, as it is; else the archive's fault."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, None):
        return error
    name = str(error.filename or "a file")
    short = name if len(name) < 120 else f"{name[:60]}…"
    return ImageError(
        f"{short} of an archive cannot be unpacked ({error.strerror or error})",
        remedy="make it again with names that file systems can hold",
    )


def _kind(member: tarfile.TarInfo) -> Kind:
    if member.isdir():
        return "directory"
    if member.issym():
        return "symlink"
    return "file" if member.isreg() or member.islnk() else "other"


def list_folder(root: Path) -> dict[str, Entry]:
    """Return the entries of a folder on disk, links not followed (OSError when unreadable)."""
    entries: dict[str, Entry] = {}
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(root / folder) as items:
            for item in items:
                path = f"{folder}/{item.name}" if folder else item.name
                status = item.stat(follow_symlinks=False)
                kind = _kind_of(status.st_mode)
                if kind == "directory":
                    waiting.append(path)
                entries[path] = Entry(
                    path=path,
                    kind=kind,
                    mode=stat.S_IMODE(status.st_mode),
                    size=status.st_size if kind == "file" else 0,
                    target=str(Path(item.path).readlink()) if kind == "symlink" else None,
                    uid=status.st_uid,
                    gid=status.st_gid,
                    mtime=status.st_mtime,
                )
    return entries


def _kind_of(mode: int) -> Kind:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISLNK(mode):
        return "symlink"
    return "file" if stat.S_ISREG(mode) else "other"


def remove_scratch(folder: Path) -> None:
    """Remove a scratch folder whatever the modes and mounts inside; a missing one is no error."""
    unmount_below(folder)

    def retry(function: Callable[..., object], path: str, error: BaseException) -> None:
        parent = Path(path).parent
        if isinstance(error, PermissionError) and parent.is_dir():
            parent.chmod(0o700)
            function(path)
        elif not isinstance(error, FileNotFoundError):
            raise error

    shutil.rmtree(folder, onerror=lambda function, path, info: retry(function, path, info[1]))


def unmount_below(folder: Path) -> None:
    """Let go of every mount at or below a folder."""
    unmount(folder)


def unmount(folder: Path) -> None:
    """Unmount whatever is mounted at or below a folder, as far as this user may."""
    for mount in mounts_below(folder):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)


def mounts_below(folder: Path) -> list[str]:
    """Return the mount points at or below a folder, deepest first (container stores make such)."""
    start = str(folder.absolute())
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    points = [line.split(" ")[4].replace("\\040", " ") for line in lines]
    inside = [point for point in points if point == start or point.startswith(start + "/")]
    return sorted(inside, key=len, reverse=True)
