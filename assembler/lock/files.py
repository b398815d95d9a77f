"""The lock on disk: three renderings of one model, and the request as conda-lock reads it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from assembler.channel.guard import writing
from assembler.errors import LockError
from assembler.lock import condalock, explicit, pixi, request
from assembler.lock.model import Lock

PART = ".part"
AWAY = "move it away and run `assembler lock`"


def render(lock: Lock) -> Mapping[str, bytes]:
    """Return every file of the lock by name; the source of truth comes last."""
    return {
        **render_beside(lock),
        condalock.FILE: condalock.lock_bytes(lock),
    }


def render_beside(lock: Lock) -> Mapping[str, bytes]:
    """Return the files that only repeat the lock, by name; takes some hundredths of a second."""
    return {
        request.ENVIRONMENT: request.environment_bytes(lock),
        request.VIRTUAL: request.virtual_packages_bytes(lock),
        explicit.FILE: explicit.explicit_bytes(lock),
        pixi.FILE: pixi.pixi_bytes(lock),
    }


def write_lock(lock: Lock, folder: Path) -> tuple[str, ...]:
    """Write the lock's files into a folder and return the names of those that changed.

    All are written beside and flushed before the first is renamed, conda-lock.yml last; files
    that would not change are left alone. Raises LockError where something else is in their places.
    """
    files = render(lock)
    with writing(folder, LockError):
        return _write(files, folder)


def _write(files: Mapping[str, bytes], folder: Path) -> tuple[str, ...]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise LockError(
            f"{error.filename} is not a folder, and the lock's files belong there",
            remedy="move what is in the way, and run `assembler lock`",
        ) from None
    for name in files:
        if (folder / name).is_dir():
            raise LockError(f"{folder / name} is a folder", remedy=AWAY)
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
    try:
        if path.is_dir() and path.name != condalock.FILE:
            path = path / condalock.FILE
        data = path.read_bytes()
    except FileNotFoundError:
        others = sorted(other.parent.name for other in path.parent.parent.glob(f"*/{path.name}"))
        elsewhere = f", or choose with --profile what is locked: {', '.join(others)}"
        raise LockError(
            f"there is no lock at {path}",
            remedy=f"run `assembler lock`{elsewhere if others else ''}",
        ) from None
    except IsADirectoryError:
        raise LockError(f"{path} is a folder", remedy=AWAY) from None
    except OSError as error:
        raise LockError(
            f"{path} cannot be read ({error.strerror})", remedy="name a lock with --lock"
        ) from None
    return condalock.parse(data, str(path))
