"""Opens whatever is verified as trees: an image, a package, a folder or a whole channel.

Images are unpacked once into ``<scratch>/<digest>`` and stay there for the next run; when another
image has to be unpacked, copies that nobody uses make room. Packages are unpacked into a folder
that goes away after its gates.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import zstandard

from assembler.digest import sha256_file
from assembler.errors import BusyError, ImageError, NoSpaceError, VerifyError
from assembler.progress import Progress
from assembler.verify.copies import LIST_FILE, LIST_HEAD, PARTIAL, drop_unused, hold
from assembler.verify.oci import (
    Blobs,
    LayoutArchive,
    LayoutFolder,
    OciImage,
    is_layout,
    read_images,
)
from assembler.verify.tree import Entry, Tree
from assembler.verify.unpack import Unpacker, list_folder, remove_scratch

ATTEMPTS = 3
TAR_MAGIC_AT, TAR_MAGIC = 257, b"ustar"
CONDA_SUBDIRS = ("noarch", "linux-64")
REPODATA = "repodata.json"
MOUNT_POINTS = {"dev": 0o755, "proc": 0o555, "sys": 0o555, "tmp": 0o1777}
"""Folders that container engines make when an image lacks them; in the copy, not in the list."""
_counter = itertools.count()


@dataclass(frozen=True)
class Subject:
    """Something to open: where it is, and what kind of thing it is."""

    path: Path
    kind: str
    image: OciImage | None = None


def find_subjects(path: Path) -> tuple[Subject, ...]:
    """Say what a path holds; a channel gives one subject for each package.

    VerifyError when the path is nothing that can be verified.
    """
    if path.is_dir():
        if is_layout(path):
            return _images(path, LayoutFolder(path), "oci-layout")
        packages = tuple(
            Subject(package, "conda")
            for subdir in CONDA_SUBDIRS
            for package in _packages(path / subdir)
        )
        if not packages and any((path / name / REPODATA).is_file() for name in CONDA_SUBDIRS):
            raise VerifyError(
                f"the channel {path} holds no packages, so there is nothing to verify",
                remedy="build them with `assembler build`, or name another channel",
            )
        return packages or (Subject(path, "folder"),)
    if not path.is_file():
        raise VerifyError(
            f"{path} is neither a file nor a folder" if path.exists() else f"there is no {path}",
            remedy="name an OCI layout or archive, a .conda, a wheel, a folder or a channel",
        )
    if path.suffix == ".conda":
        return (Subject(path, "conda"),)
    if path.suffix == ".whl":
        return (Subject(path, "wheel"),)
    with path.open("rb") as stream:
        head = stream.read(512)
    if head[TAR_MAGIC_AT : TAR_MAGIC_AT + len(TAR_MAGIC)] == TAR_MAGIC:
        return _images(path, LayoutArchive.index(path), "oci-archive")
    raise VerifyError(
        f"{path} is neither an image, a .conda package, a wheel nor a folder",
        remedy="compressed archives have to be unpacked first",
    )


def _packages(folder: Path) -> list[Path]:
    """Return a channel subfolder's packages, none when there is no such folder."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".conda")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unlisted(folder, error) from None


def _unlisted(path: Path, error: OSError) -> VerifyError:
    return VerifyError(
        f"{error.filename or path} cannot be listed ({error.strerror})",
        remedy="make it readable, or verify what it was made from",
    )


def _images(path: Path, blobs: Blobs, kind: str) -> tuple[Subject, ...]:
    return tuple(Subject(path, kind, image) for image in read_images(path, blobs))


@contextmanager
def open_tree(subject: Subject, scratch: Path, progress: Progress) -> Iterator[Tree]:
    """Open a subject for the length of the block.

    ``scratch`` is the folder for unpacked copies. NoSpaceError when they do not fit; nothing is
    left behind then.
    """
    if subject.image is not None:
        with open_image(subject.image, scratch, progress) as tree:
            yield tree
    elif subject.kind == "folder":
        try:
            entries = list_folder(subject.path)
        except OSError as error:
            raise _unlisted(subject.path, error) from None
        if all(entry.kind == "directory" for entry in entries.values()):
            raise VerifyError(
                f"the folder {subject.path} holds no files, so there is nothing to verify",
                remedy="name an OCI layout or archive, a .conda, a wheel, a folder or a channel",
            )
        yield Tree(
            label=str(subject.path), kind="folder", origin=subject.path, root=subject.path,
            entries=entries, prefix=_find_prefix(entries),
        )  # fmt: skip
    else:
        scratch.mkdir(parents=True, exist_ok=True)
        place = scratch / f"{PARTIAL}{next(_counter)}-{os.getpid()}"
        try:
            with _room_for(subject.path.name, scratch):
                tree = _open_package(subject, place)
            yield tree
        finally:
            remove_scratch(place)


@contextmanager
def open_image(image: OciImage, scratch: Path, progress: Progress) -> Iterator[Tree]:
    """Open an image's file system, unpacked now or by an earlier run.

    The image's own bytes are read first: a copy says nothing of an image that was damaged since.
    The unpacked copy is locked (shared) for the length of the block, so that no other run drops it.
    """
    with progress.task(f"check {image.path.name}"):
        image.check()
    place = scratch / image.manifest.digest.partition(":")[2]
    for _ in range(ATTEMPTS):
        lock = hold(place)
        if lock is None:
            drop_unused(scratch)
            lock = _unpack_image(image, place, progress)
        if lock is not None:
            break
    else:
        raise BusyError(
            f"other processes keep making and removing {place}", remedy="run it again by itself"
        )
    try:
        entries = _read_list(place)
        yield Tree(
            label=str(image.path),
            kind="image",
            origin=image.path,
            root=place / "root",
            entries=entries,
            digest=image.manifest.digest,
            config=image.config,
            image=image,
            prefix=_find_prefix(entries),
        )
    finally:
        os.close(lock)


def _unpack_image(image: OciImage, place: Path, progress: Progress) -> int | None:
    """Unpack an image to ``place`` and hold it; None when another process was faster."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f"{PARTIAL}{place.name[:16]}-{os.getpid()}")
    remove_scratch(partial)
    lock: int | None = None
    try:
        with (
            _room_for(f"the image {image.path}", place.parent),
            progress.task(f"unpack {image.path.name}", in_bytes=True) as task,
        ):
            unpacker = Unpacker(partial / "root", advance=task.advance)
            for position in range(len(image.layers)):
                with image.layer(position) as stream:
                    unpacker.add_tar(stream, layer=position)
            unpacker.finish()
            _write_list(partial, unpacker.entries)
            _make_mount_points(partial / "root")
            # The sandboxed user must be able to walk in; the root's own mode is 0755 in images.
            partial.chmod(0o755)
            (partial / "root").chmod(0o755)
        lock = hold(partial)
        partial.rename(place)
    except OSError as error:
        if lock is not None:
            os.close(lock)
        if lock is None or error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return None
    finally:
        remove_scratch(partial)
    return lock


def _make_mount_points(root: Path) -> None:
    for name, mode in MOUNT_POINTS.items():
        if not (root / name).is_symlink():
            (root / name).mkdir(exist_ok=True)
            (root / name).chmod(mode)


@contextmanager
def _room_for(what: str, scratch: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoSpaceError(
            f"{what} does not fit unpacked into {scratch}",
            remedy="free some room there, or name a roomier folder with --scratch",
        ) from None


def _write_list(place: Path, entries: dict[str, Entry]) -> None:
    """Write what was unpacked: a line that names the format, then one JSON line."""
    rows = [
        [e.path, e.kind, e.mode, e.size, e.target, e.hardlink, e.uid, e.gid, e.mtime, e.layer]
        for e in entries.values()
    ]
    (place / LIST_FILE).write_bytes(LIST_HEAD + json.dumps(rows).encode())


def _read_list(place: Path) -> dict[str, Entry]:
    data = (place / LIST_FILE).read_bytes().removeprefix(LIST_HEAD)
    return {row[0]: Entry(*row) for row in json.loads(data)}


def _find_prefix(entries: dict[str, Entry]) -> str | None:
    """Return the folder that holds conda-meta, the shallowest one; "" when it is the root."""
    metas = [path for path in entries if path == "conda-meta" or path.endswith("/conda-meta")]
    if not metas:
        return None
    return min(metas, key=lambda path: (path.count("/"), path)).rpartition("/")[0]


def _open_package(subject: Subject, place: Path) -> Tree:
    unpacker = Unpacker(place / "root")
    info: Path | None = None
    try:
        with zipfile.ZipFile(subject.path) as archive:
            if subject.kind == "wheel":
                unpacker.add_zip(archive)
            else:
                info = _unpack_conda(archive, unpacker, place)
    except (
        zipfile.BadZipFile,
        zstandard.ZstdError,
        StopIteration,
        EOFError,
        NotImplementedError,
    ) as error:
        raise ImageError(
            f"{subject.path} is damaged ({str(error) or 'a part is missing'})",
            remedy="build or fetch it again",
        ) from None
    return Tree(
        label=subject.path.name,
        kind="wheel" if subject.kind == "wheel" else "conda",
        origin=subject.path,
        root=unpacker.root,
        entries=unpacker.entries,
        digest="sha256:" + sha256_file(subject.path),
        prefix="",
        info=info,
    )


def _unpack_conda(archive: zipfile.ZipFile, unpacker: Unpacker, place: Path) -> Path:
    """Unpack both halves of a .conda: ``pkg-*.tar.zst`` and ``info-*.tar.zst`` (CEP 35)."""
    members = archive.namelist()
    information = Unpacker(place / "info-root")
    for start, target in (("info-", information), ("pkg-", unpacker)):
        name = next(
            member for member in members if member.startswith(start) and member.endswith(".tar.zst")
        )
        with (
            archive.open(name) as packed,
            zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as plain,
        ):
            target.add_tar(cast("IO[bytes]", plain))
    return information.root / "info"
