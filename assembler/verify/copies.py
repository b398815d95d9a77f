"""Unpacked copies of images that several processes share, make and remove.

A copy is a folder named by the image's digest; whoever uses it holds a shared lock on that folder
(flock), whoever removes it an exclusive one, and takes it out of sight by renaming before a file
of it goes. A lock counts only while the path still leads to the folder that was locked.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

from assembler.verify.unpack import remove_scratch

LIST_HEAD = b"unpacked 3\n"
"""First line of a copy's list of entries; its number changes with what a copy holds."""
LIST_FILE = "entries"
PARTIAL = ".unpacking-"
"""Start of the names of folders that are being made or removed; they end with ``-<pid>``."""
_COPY = re.compile(r"[0-9a-f]{64}")


def hold(place: Path) -> int | None:
    """Lock a copy against removal and return the lock, a file descriptor to close.

    None when there is no copy, it was made by another version, or it is being removed.
    """
    lock = _lock(place, fcntl.LOCK_SH)
    if lock is None:
        return None
    try:
        with (place / LIST_FILE).open("rb") as listed:
            usable = listed.read(len(LIST_HEAD)) == LIST_HEAD
    except FileNotFoundError:
        usable = False
    if not usable:
        os.close(lock)
        return None
    return lock


def drop_unused(scratch: Path) -> None:
    """Remove copies that no running process holds, and what killed runs left."""
    if not scratch.is_dir():
        return
    for folder in sorted(scratch.iterdir()):
        owner = folder.name.rpartition("-")[2]
        if folder.name.startswith(PARTIAL) and owner.isdigit():
            if not Path(f"/proc/{owner}").exists():
                remove_scratch(folder)
        elif _COPY.fullmatch(folder.name):
            _drop(folder)


def _drop(folder: Path) -> None:
    lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if lock is None:
        return
    try:
        gone = folder.with_name(f"{PARTIAL}{folder.name[:16]}-gone-{os.getpid()}")
        remove_scratch(gone)
        folder.rename(gone)
    finally:
        os.close(lock)
    remove_scratch(gone)


def _lock(folder: Path, kind: int) -> int | None:
    """Lock a folder; None when it is not there, is locked otherwise, or was replaced meanwhile."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(lock, kind)
        ours, there = os.fstat(lock), folder.stat()
        if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):
            return lock
    os.close(lock)
    return None
