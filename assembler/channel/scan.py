"""What lies in a channel folder: whole packages, and everything that should not be there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assembler.channel.location import (
    INDEX,
    INDEX_ZST,
    KNOWN_SUBDIRS,
    PART,
    PLACEHOLDERS,
    REQUIRED_SUBDIRS,
    is_package,
    state_folder,
)
from assembler.channel.records import Archive, DamagedError, inspect
from assembler.digest import canonical_json

STAMPS = "stamps.json"
STAMPS_FORMAT = 1
INSPECTORS = 4  # threads; hashing and CRC release the interpreter lock


@dataclass(frozen=True, order=True)
class Problem:
    """Something wrong in a channel; ``path`` is relative to it.

    ``kind`` is one of: ``damaged`` (a package that is not whole or not what its name says),
    ``foreign`` (a file that no channel holds), ``leftover`` (of a run that was killed),
    ``unindexed`` (a package the index does not name), ``missing`` (a package the index names and
    the folder lacks), ``differs`` (index and package disagree), ``index`` (the index is absent,
    unreadable or not in step with its compressed copy), ``unfinished`` (a removal that a killed run
    still owes).
    """

    path: str
    kind: str
    what: str

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.path}: {self.what}"


@dataclass(frozen=True)
class Stamp:
    """A package as it was when it was last read whole, and the file's state at that time.

    A file whose size, modification time, change time and inode are the recorded ones is the file
    that was read: the change time moves with every write and cannot be set back.
    """

    state: tuple[int, int, int, int]
    entry: Mapping[str, Any]
    input_key: str | None


@dataclass
class Survey:
    """The result of looking through a channel."""

    stamps: dict[str, Stamp] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def entries(self) -> dict[str, Mapping[str, Any]]:
        """The index entries of all whole packages by path."""
        return {path: stamp.entry for path, stamp in self.stamps.items()}


def file_state(path: Path) -> tuple[int, int, int, int]:
    """Return what identifies a file's present content without reading it."""
    stat = path.stat(follow_symlinks=False)
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def read_stamps(channel: Path) -> dict[str, Stamp]:
    """Return what is remembered of a channel's packages, as far as that is readable."""
    try:
        data = json.loads((state_folder(channel) / STAMPS).read_bytes())
        if data["format"] != STAMPS_FORMAT:
            return {}
        return {
            str(path): Stamp(tuple(item["state"]), item["entry"], item["input_key"])
            for path, item in data["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def stamps_bytes(stamps: Mapping[str, Stamp]) -> bytes:
    """Return the stamps as they are kept."""
    files = {
        path: {"state": stamp.state, "entry": dict(stamp.entry), "input_key": stamp.input_key}
        for path, stamp in stamps.items()
    }
    return canonical_json({"format": STAMPS_FORMAT, "files": files})


def subdirs(channel: Path) -> tuple[str, ...]:
    """Return the subdirs a channel has or must have, sorted."""
    present = {name for name in KNOWN_SUBDIRS if (channel / name).is_dir()}
    return tuple(sorted(present.union(REQUIRED_SUBDIRS)))


def _top_level(channel: Path) -> Iterable[Problem]:
    for item in sorted(channel.iterdir()):
        if item.name in PLACEHOLDERS or (item.name in KNOWN_SUBDIRS and item.is_dir()):
            continue
        yield Problem(item.name, "foreign", "does not belong in a channel")


def _look(path: Path, subdir: str) -> Archive:
    archive = inspect(path)
    if archive.subdir != subdir:
        raise DamagedError(f"it is for {archive.subdir}", remedy=f"move it to {archive.subdir}/")
    return archive


def survey(
    channel: Path,
    known: Mapping[str, Stamp],
    *,
    skip: Collection[str] = (),
    seen: Callable[[str], None] = lambda _: None,
) -> Survey:
    """Look through a channel, reading only the packages that ``known`` does not vouch for.

    ``skip`` names packages (by path) to leave out; ``seen`` is told each package that was read.
    """
    found = Survey()
    if channel.is_dir():
        found.problems.extend(_top_level(channel))
    unread: list[tuple[str, Path]] = []
    for subdir in subdirs(channel):
        folder = channel / subdir
        for item in sorted(folder.iterdir()) if folder.is_dir() else ():
            path = f"{subdir}/{item.name}"
            if item.name in (INDEX, INDEX_ZST) or item.name in PLACEHOLDERS or path in skip:
                continue
            if item.name.startswith(".") and item.name.endswith(PART):
                found.problems.append(
                    Problem(path, "leftover", "was left by a run that was killed")
                )
            elif not is_package(item.name):
                found.problems.append(Problem(path, "foreign", "does not belong in a channel"))
            elif path in known and not item.is_symlink() and file_state(item) == known[path].state:
                found.stamps[path] = known[path]
            else:
                unread.append((path, item))
    _read(found, unread, seen)
    found.problems.sort()
    return found


def _read(found: Survey, unread: list[tuple[str, Path]], seen: Callable[[str], None]) -> None:
    def read(job: tuple[str, Path]) -> Stamp | DamagedError:
        path, item = job
        try:
            # The state is taken first: a write during the reading then makes the stamp void.
            state = file_state(item)
            archive = _look(item, path.split("/", 1)[0])
        except DamagedError as error:
            return error
        except OSError as error:
            return DamagedError(f"{item} cannot be read ({error.strerror})", remedy="look at it")
        return Stamp(state, archive.entry, archive.input_key)

    with ThreadPoolExecutor(min(INSPECTORS, (os.cpu_count() or 1) + 1)) as pool:
        for (path, _), result in zip(unread, pool.map(read, unread), strict=True):
            seen(path)
            if isinstance(result, DamagedError):
                found.problems.append(Problem(path, "damaged", result.saw))
            else:
                found.stamps[path] = result
