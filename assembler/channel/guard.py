"""One writer at a time: a lock that says who holds it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from assembler.channel.location import state_folder
from assembler.errors import AssemblerError, BusyError, ChannelError
from assembler.progress import Progress

GUARD = "guard"
POLL = 0.05  # seconds
SOMEBODY = "another process"
UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.EISDIR, errno.ELOOP, errno.ENOTDIR)
# What each thread holds already: a command that publishes inside a guarded section does not wait
# for itself. The process is part of the key because a forked worker inherits this table.
_Key = tuple[Path, int, int]
_held: set[_Key] = set()


def _owner() -> bytes:
    return json.dumps(
        {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200],
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    ).encode()


def describe_owner(data: bytes) -> str:
    """Return the words for a guard's owner: process, command and since when."""
    try:
        owner = json.loads(data)
        return (
            f"process {owner['pid']} on {owner['host']} ({owner['command']}) since {owner['since']}"
        )
    except (ValueError, KeyError, TypeError):
        return SOMEBODY


def _acquire(handle: int, folder: Path, progress: Progress, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    told = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise ChannelError(
                    f"{folder} cannot be guarded ({error.strerror})",
                    remedy="put it on a file system that has file locks",
                ) from None
        else:
            return
        owner = describe_owner(os.pread(handle, 4096, 0))
        if time.monotonic() >= deadline:
            raise BusyError(
                f"{folder} is held by {owner}",
                remedy="wait for it to finish, or end it, and run the command again",
            )
        # Between taking the lock and writing its name, or after erasing it, an owner is nobody yet.
        if not told and owner != SOMEBODY:
            progress.say(f"waiting for {folder}, held by {owner}")
            told = True
        time.sleep(POLL)


@contextmanager
def writing(folder: Path, kind: type[AssemblerError] = ChannelError) -> Iterator[None]:
    """Turn a refusal to write below ``folder`` inside the block into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise kind(
            f"{error.filename or folder} cannot be written ({error.strerror})",
            remedy=f"give yourself the right to write in {folder}",
        ) from None


@contextmanager
def reading(folder: Path, kind: type[AssemblerError] = ChannelError) -> Iterator[None]:
    """Turn what cannot be read below ``folder`` inside the block into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        raise kind(
            f"{error.filename or folder} cannot be read ({error.strerror or error})",
            remedy=f"give yourself the right to read {folder}, or look at what is there",
        ) from None


@contextmanager
def exclusive(folder: Path, progress: Progress, timeout: float = 600.0) -> Iterator[None]:
    """Hold a channel, or any folder, alone for as long as the block runs.

    Waits up to ``timeout`` seconds and says once whom it waits for; then BusyError, which names the
    owner. The kernel gives the lock up when its process dies, however that happens. A process may
    enter the same folder's guard again inside the block.
    """
    state = state_folder(folder)
    path = state / GUARD
    key = (path, os.getpid(), threading.get_ident())
    if key in _held:
        yield
        return
    with writing(state):
        state.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _acquire(handle, folder, progress, timeout)
        os.ftruncate(handle, 0)
        os.pwrite(handle, _owner(), 0)
        _held.add(key)
        try:
            yield
        finally:
            _held.discard(key)
            # The file stays: removing it would let two processes hold two files of one name.
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)
