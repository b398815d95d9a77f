"""A folder of verified files, addressed by their SHA-256.

    <root>/<first two digits>/<sha256>    finished files, mode 0444
    <root>/partial/<sha256>               downloads under way; a killed one goes on from here
    <root>/partial/<anything else>        scratch files and folders

Whoever writes below ``partial`` holds a lock on it, so that `Store.sweep` knows what a killed
process left from what a living one needs. A file enters only after its bytes were hashed, by one
rename; readers never see half of one. Hard links to stored files may exist elsewhere: never write
to a path that came from here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from assembler.digest import sha256_file
from assembler.errors import HashMismatchError, NoSpaceError

UNFINISHED = 30 * 24 * 3600  # seconds after which nobody goes on with a download

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def mismatch(name: str, expected: str, found: str) -> HashMismatchError:
    """Return the error for bytes that are not the pinned ones; nothing of them is kept."""
    return HashMismatchError(
        f"{name} has SHA-256 {found} where {expected} is pinned, and was not kept",
        remedy="find out why the file changed, then re-pin it with `assembler pin` if it is right",
    )


@contextmanager
def room(name: str, *leftovers: Path) -> Iterator[None]:
    """Turn a full disk into NoSpaceError and remove ``leftovers`` when anything goes wrong."""
    try:
        yield
    except BaseException as error:
        for path in leftovers:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _FULL:
            raise NoSpaceError(
                f"the disk is full while storing {name}", remedy="free some room and run it again"
            ) from None
        raise


def sync_file(path: Path) -> None:
    """Make a file's bytes durable before a rename makes them visible."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder alone against other processes that do the same, and wait for them."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    # Where the file system knows no locks, `Store.sweep` cannot get one either and lets all be.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _same(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _is_link_or_copy(path: Path, destination: Path) -> bool:
    """Tell whether ``destination`` is already what ``Store.link`` would make it."""
    try:
        there = destination.lstat()
    except FileNotFoundError:
        return False
    here = path.stat()
    if there.st_dev == here.st_dev:
        return there.st_ino == here.st_ino
    return (there.st_size, there.st_mtime_ns) == (here.st_size, here.st_mtime_ns)


class Store:
    """Content-addressed files below ``root``, which is made when first written to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._reserved: dict[Path, BinaryIO] = {}
        self._swept = False

    def path(self, sha256: str) -> Path:
        """Return where the file with this hash is, or would be."""
        return self.root / sha256[:2] / sha256

    def has(self, sha256: str, size: int | None = None) -> bool:
        """Tell whether the file is here, with the given size in bytes when there is one.

        The bytes were hashed when they came in and are not hashed again; see ``verify``.
        """
        try:
            found = self.path(sha256).stat()
        except FileNotFoundError:
            return False
        return size is None or found.st_size == size

    def size(self, sha256: str) -> int:
        """Return a stored file's size in bytes."""
        return self.path(sha256).stat().st_size

    def verify(self, sha256: str) -> bool:
        """Hash a stored file again; one that rotted is removed. False when it is not here (now)."""
        path = self.path(sha256)
        try:
            if sha256_file(path) == sha256:
                return True
        except FileNotFoundError:
            return False
        path.unlink(missing_ok=True)
        return False

    def _place(self, beside: Path, sha256: str) -> Path:
        path = self.path(sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.chmod(0o444)
        sync_file(beside)
        beside.replace(path)
        return path

    def add(self, file: Path, sha256: str, *, name: str = "", move: bool = False) -> Path:
        """Take a file in and return its stored path; HashMismatchError when its bytes differ.

        ``move`` gives the file up (a rename on the same file system); otherwise it is copied.
        ``name`` is how messages call it.
        """
        name = name or file.name
        beside = self.reserve("in")
        try:
            with room(name, beside):
                if move:
                    self._move(file, beside)
                else:
                    shutil.copyfile(file, beside)
                found = sha256_file(beside)
                if found != sha256:
                    raise mismatch(name, sha256, found)
                return self._place(beside, sha256)
        finally:
            self._reserved.pop(beside).close()

    def _move(self, file: Path, beside: Path) -> None:
        """Move a file into a reserved place, which stays reserved: a rename brings its own file."""
        stream = self._reserved.pop(file, None)
        if stream is None:
            stream = file.open("rb")
            _lock(stream.fileno())
        shutil.move(file, beside)
        self._reserved.pop(beside).close()
        self._reserved[beside] = stream

    def _partials(self) -> Path:
        folder = self.root / "partial"
        folder.mkdir(parents=True, exist_ok=True)
        self.sweep(once=True)
        return folder

    def reserve(self, kind: str) -> Path:
        """Return a new empty file below ``partial`` that stays until this process gives it up.

        `add` with ``move``, a rename or the end of the process does.
        """
        folder = self._partials()
        while True:
            path = folder / f"{kind}-{os.getpid()}-{secrets.token_hex(4)}"
            stream = path.open("xb")
            _lock(stream.fileno())
            if _same(stream.fileno(), path):
                self._reserved[path] = stream
                return path
            stream.close()  # taken for litter before the lock was there

    @contextmanager
    def scratch(self, kind: str) -> Iterator[Path]:
        """Make a folder below ``partial`` for as long as the block runs."""
        with ExitStack() as stack:
            while True:
                path = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=self._partials()))
                stack.callback(shutil.rmtree, path, ignore_errors=True)
                with suppress(FileNotFoundError):
                    stack.enter_context(held(path))
                    if path.exists():  # not taken for litter before the lock was there
                        break
            yield path

    def sweep(self, *, once: bool = False) -> None:
        """Remove what killed processes left, and beginnings of downloads nobody went on with.

        What a living process holds stays. With ``once``, only the first call does anything.
        """
        if self._swept and once:
            return
        self._swept = True
        with suppress(OSError):
            for path in (self.root / "partial").iterdir():
                with suppress(OSError):
                    self._sweep(path)

    def _sweep(self, path: Path) -> None:
        resumable = _SHA256.fullmatch(path.name) and not self.has(path.name)
        if resumable and time.time() - path.lstat().st_mtime < UNFINISHED:
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same(descriptor, path):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        finally:
            os.close(descriptor)

    def partial(self, sha256: str) -> Path:
        """Return where the download of this hash is kept until it is complete."""
        return self.root / "partial" / sha256

    @contextmanager
    def downloading(self, sha256: str) -> Iterator[Path | None]:
        """Hold the partial file alone; None when somebody else completed it in the meantime.

        The file exists inside the block and is empty or a beginning of the bytes. Another process
        that wants the same hash waits.
        """
        path = self.partial(sha256)
        while True:
            self._partials()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if not _same(descriptor, path):
                    continue  # somebody completed and moved it while this process waited
                if self.has(sha256):
                    path.unlink(missing_ok=True)
                    yield None
                else:
                    yield path
                return
            finally:
                os.close(descriptor)

    def complete(self, sha256: str, found: str, *, name: str) -> Path:
        """Take the partial download in, whose bytes hash to ``found``; a wrong one is removed."""
        path = self.partial(sha256)
        if found != sha256:
            path.unlink(missing_ok=True)
            raise mismatch(name, sha256, found)
        with room(name, path):
            return self._place(path, sha256)

    def link(self, sha256: str, destination: Path) -> None:
        """Put a stored file at ``destination``: a hard link, or a copy on another file system."""
        path = self.path(sha256)
        if _is_link_or_copy(path, destination):
            return
        destination.parent.mkdir(parents=True, exist_ok=True)
        beside = destination.with_name(f".{destination.name}-{os.getpid()}-{secrets.token_hex(4)}")
        with room(destination.name, beside):
            try:
                os.link(path, beside)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                    raise
                shutil.copyfile(path, beside)
                shutil.copystat(path, beside)
            beside.replace(destination)
