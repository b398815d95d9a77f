"""The lock on disk: three renderings of one model, and the request as conda-lock reads it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from assembler.channel.guard import writing
from assembler.errors import LockError
from assembler.lock import condalock, explicit, pixi
from assembler.lock.model import Lock

PART = ".part"


def render(lock: Lock) -> Mapping[str, bytes]:
    """Return every file of the lock by name; the source of truth comes last."""
    return {
        condalock.ENVIRONMENT: condalock.environment_bytes(lock),
        condalock.VIRTUAL: condalock.virtual_packages_bytes(lock),
        explicit.FILE: explicit.explicit_bytes(lock),
        pixi.FILE: pixi.pixi_bytes(lock),
        condalock.FILE: condalock.lock_bytes(lock),
    }


def write_lock(lock: Lock, folder: Path) -> tuple[str, ...]:
    """Write the lock's files into a folder and return the names of those that changed.

    All are written beside and flushed before the first is renamed, conda-lock.yml last; files
    that would not change are left alone.
    """
    files = render(lock)
    with writing(folder, LockError):
        return _write(files, folder)


def _write(files: Mapping[str, bytes], folder: Path) -> tuple[str, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Path] = {}
    try:
        for name, data in files.items():
            path = folder / name
            if path.is_file() and path.read_bytes() == data:
                continue
            parts[name] = folder / f".{name}.{uuid.uuid4().hex[:8]}{PART}"
            with parts[name].open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        for name, part in parts.items():
            part.replace(folder / name)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    return tuple(parts)


def read_lock(path: Path) -> Lock:
    """Return the lock of a conda-lock.yml, or of the folder that holds one.

    Raises LockError: there is none, or it is not as `assembler lock` wrote it.
    """
    if path.is_dir():
        path = path / condalock.FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise LockError(f"there is no lock at {path}", remedy="run `assembler lock`") from None
    except OSError as error:
        raise LockError(
            f"{path} cannot be read ({error.strerror})", remedy="name a lock with --lock"
        ) from None
    return condalock.parse(data, str(path))
