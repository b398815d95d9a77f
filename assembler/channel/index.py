"""The channel's index: read it, publish into it, check it, put it right.

Packages are complete before an index names them, and an index stops naming a package before the
package goes. Every step is a rename, so a run that is killed leaves a channel that is valid; what
it still owed (removals) stands in a journal and is done by the next publish or repair.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

from assembler.channel.guard import exclusive, reading, writing
from assembler.channel.location import (
    INDEX,
    INDEX_ZST,
    PACKAGE_SUFFIXES,
    PART,
    is_package,
    state_folder,
)
from assembler.channel.records import Archive, Record, inspect
from assembler.channel.scan import (
    STAMPS,
    Problem,
    Stamp,
    Survey,
    file_state,
    read_stamps,
    stamps_bytes,
    subdirs,
    survey,
)
from assembler.digest import sha256_file
from assembler.errors import ChannelError, HashMismatchError
from assembler.progress import Progress, SilentProgress
from assembler.sources.store import sync_file

JOURNAL = "journal.json"
QUARANTINE = "quarantine"
SECTIONS = {".conda": "packages.conda", ".tar.bz2": "packages"}
ZST_LEVEL = 19
REPAIR = "run `assembler channel repair`"


# -- reading ---------------------------------------------------------------------------------------


def read_index(path: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of one repodata.json by file name; ChannelError when it is unreadable."""
    try:
        data = json.loads(path.read_bytes())
        entries = {**data.get("packages", {}), **data.get("packages.conda", {})}
        if not all(isinstance(entry, dict) for entry in entries.values()):
            raise TypeError("an entry is not an object")
    except FileNotFoundError:
        raise ChannelError(f"there is no {path}", remedy=REPAIR) from None
    except OSError as error:
        raise ChannelError(
            f"{path} cannot be read ({error.strerror})",
            remedy="look at what is there, and at your right to read it",
        ) from None
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ChannelError(f"{path} is not an index ({error})", remedy=REPAIR) from None
    return entries


def read_records(channel: Path) -> tuple[Record, ...]:
    """Return the packages that the index names and the folder has, sorted.

    An absent or empty channel has none. Files are not read: ``check`` does that. Raises
    ChannelError when an index is unreadable.
    """
    records = []
    with reading(channel):
        present = [item for item in subdirs(channel) if (channel / item / INDEX).exists()]
    for subdir in present:
        for file, entry in read_index(channel / subdir / INDEX).items():
            record = Record.from_entry(subdir, file, entry)
            try:
                size = (channel / record.path).stat(follow_symlinks=False).st_size
            except OSError:
                continue
            if size == record.size:
                records.append(record)
    return tuple(sorted(records, key=lambda record: (record.name, record.version, record.path)))


def input_keys(channel: Path) -> dict[str, str]:
    """Return the input keys stored in the channel's packages by path, where they have one.

    Reads only packages that have changed since the channel was last looked through, and remembers
    them, so that a channel that was copied here is read once.
    """
    known = read_stamps(channel)
    with reading(channel):
        stamps = survey(channel, known).stamps
    if stamps != known:
        state = state_folder(channel)
        state.mkdir(parents=True, exist_ok=True)
        write_whole(state / STAMPS, stamps_bytes(stamps))
    return {path: stamp.input_key for path, stamp in sorted(stamps.items()) if stamp.input_key}


# -- writing ---------------------------------------------------------------------------------------


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file's content at once: written beside, flushed to the disk, renamed."""
    part = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}{PART}"
    try:
        with part.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def index_bytes(subdir: str, entries: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return repodata.json of the given entries (by file name) in its one spelling."""
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS.values()}
    for file, entry in entries.items():
        suffix = next(suffix for suffix in PACKAGE_SUFFIXES if file.endswith(suffix))
        sections[SECTIONS[suffix]][file] = dict(entry)
    data = {"info": {"subdir": subdir}, **sections, "removed": [], "repodata_version": 1}
    return (json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _write_index(channel: Path, found: Survey) -> None:
    for subdir in subdirs(channel):
        folder = channel / subdir
        folder.mkdir(parents=True, exist_ok=True)
        data = index_bytes(
            subdir,
            {
                path.split("/", 1)[1]: entry
                for path, entry in found.entries.items()
                if path.startswith(f"{subdir}/")
            },
        )
        packed = zstandard.ZstdCompressor(level=ZST_LEVEL).compress(data)
        for name, content in ((INDEX_ZST, packed), (INDEX, data)):
            path = folder / name
            # An index that says the same stays the same file, so that caches of it stay valid.
            if not path.is_file() or path.read_bytes() != content:
                write_whole(path, content)
        sync_file(folder)


def _read_journal(channel: Path) -> set[str]:
    try:
        return set(map(str, json.loads((state_folder(channel) / JOURNAL).read_bytes())["remove"]))
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _paths(channel: Path, names: Collection[str]) -> set[str]:
    """Return the paths of packages of the channel that names mean; other names mean none."""
    places = {
        (subdir, name.removeprefix(f"{subdir}/")) for name in names for subdir in subdirs(channel)
    }
    return {f"{subdir}/{file}" for subdir, file in places if "/" not in file and is_package(file)}


def _move_in(archive: Archive, channel: Path) -> None:
    target = channel / archive.record.path
    target.parent.mkdir(parents=True, exist_ok=True)
    sync_file(archive.path)
    try:
        archive.path.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        part = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}{PART}"
        try:
            shutil.copyfile(archive.path, part)
            if sha256_file(part) != archive.record.sha256:
                raise HashMismatchError(
                    f"{archive.path} changed while it was copied", remedy="run it again"
                ) from None
            sync_file(part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        archive.path.unlink()
    target.chmod(0o644)  # rattler-build makes 0600 files, which no other user could install


def publish(
    channel: Path,
    packages: Sequence[Path],
    *,
    remove: Collection[str] = (),
    progress: Progress | None = None,
) -> tuple[Record, ...]:
    """Move finished packages into the channel, index it, then remove the stale ones.

    ``packages`` are .conda (or .tar.bz2) files anywhere; their subdir is the one they name
    themselves. ``remove`` names packages by path in the channel or by file name; one that is
    published in the same call stays. Files of the channel that are not whole packages are told to
    ``progress`` and left out of the index. Returns all records of the channel.

    Raises ChannelError, with nothing changed, when one of ``packages`` is not whole, and BusyError
    when another process holds the channel for too long.
    """
    progress = progress or SilentProgress()
    archives = [inspect(path) for path in packages]
    for path, count in Counter(archive.record.path for archive in archives).items():
        if count > 1:
            raise ChannelError(f"{count} packages are called {path}", remedy="publish one of them")
    with exclusive(channel, progress), writing(channel):
        state = state_folder(channel)
        added = {archive.record.path for archive in archives}
        stale = _paths(channel, {*_read_journal(channel), *remove}) - added
        stale = {path for path in stale if (channel / path).is_file()}
        write_whole(state / JOURNAL, json.dumps({"remove": sorted(stale)}).encode())
        known = read_stamps(channel)
        for archive in archives:
            _move_in(archive, channel)
            path = archive.record.path
            known[path] = Stamp(file_state(channel / path), archive.entry, archive.input_key)
        _finish(channel, known, stale, progress)
    return read_records(channel)


def _finish(channel: Path, known: Mapping[str, Stamp], stale: set[str], progress: Progress) -> None:
    found = survey(channel, known, skip=stale, seen=lambda path: progress.detail(f"read {path}"))
    for problem in found.problems:
        if problem.kind == "leftover":
            (channel / problem.path).unlink(missing_ok=True)
        elif problem.path.split("/")[0] in subdirs(channel):
            progress.say(f"not indexed: {problem}")
    _write_index(channel, found)
    for path in sorted(stale):
        (channel / path).unlink(missing_ok=True)
    state = state_folder(channel)
    write_whole(state / STAMPS, stamps_bytes(found.stamps))
    (state / JOURNAL).unlink(missing_ok=True)


# -- health ----------------------------------------------------------------------------------------


def _index_problems(channel: Path, found: Survey) -> list[Problem]:
    problems: list[Problem] = []
    damaged = {problem.path for problem in found.problems}
    for subdir in subdirs(channel):
        path = channel / subdir / INDEX
        try:
            indexed = read_index(path)
        except ChannelError as error:
            problems.append(Problem(f"{subdir}/{INDEX}", "index", error.saw))
            continue
        try:
            with (channel / subdir / INDEX_ZST).open("rb") as stream:
                packed = zstandard.ZstdDecompressor().stream_reader(stream).read()
            if packed != path.read_bytes():
                raise ValueError(f"does not hold what {INDEX} holds")
        except (OSError, ValueError, zstandard.ZstdError) as error:
            problems.append(Problem(f"{subdir}/{INDEX_ZST}", "index", str(error)))
        present = {
            item.split("/", 1)[1]: entry
            for item, entry in found.entries.items()
            if item.startswith(f"{subdir}/")
        }
        for file in sorted({*indexed, *present}):
            name = f"{subdir}/{file}"
            if file not in indexed:
                problems.append(Problem(name, "unindexed", "is not in the index"))
            elif file not in present:
                if name not in damaged:
                    problems.append(Problem(name, "missing", "is in the index only"))
            elif dict(present[file]) != indexed[file]:
                shown = indexed[file].get("sha256")
                real = present[file]["sha256"]
                problems.append(
                    Problem(
                        name,
                        "differs",
                        f"has sha256 {real}, the index says {shown}"
                        if shown != real
                        else "describes itself otherwise than the index does",
                    )
                )
    return problems


def check(
    channel: Path, progress: Progress | None = None, *, whole: bool = True
) -> tuple[Problem, ...]:
    """Read every package of the channel whole and compare it with the index; change nothing.

    With ``whole`` false, packages whose size, time and inode are those of the last publication are
    taken as they were then: what a build needs to know, in milliseconds. Raises ChannelError when
    there is no such folder.
    """
    progress = progress or SilentProgress()
    if not channel.is_dir():
        raise ChannelError(
            f"there is no channel at {channel}", remedy="run `assembler build` or name one with -c"
        )
    with exclusive(channel, progress):
        owed = _read_journal(channel)
        with reading(channel):
            count = sum(1 for subdir in subdirs(channel) for _ in (channel / subdir).glob("*"))
            with progress.task("reading the channel", count) as task:
                known = {} if whole else read_stamps(channel)
                found = survey(channel, known, seen=lambda _: task.advance())
            problems = [*found.problems, *_index_problems(channel, found)]
        problems = [problem for problem in problems if problem.path not in owed]
        problems += [Problem(path, "unfinished", "was to be removed") for path in owed]
    return tuple(sorted(problems))


def repair(
    channel: Path, progress: Progress | None = None, *, whole: bool = True
) -> tuple[Problem, ...]:
    """Make the channel whole again and return what was wrong with it (``whole`` as in ``check``).

    Damaged and foreign files go to the quarantine in the state folder (nothing is deleted but
    leftovers and what a killed run was removing); the index is made anew from the packages' bytes.
    """
    progress = progress or SilentProgress()
    with exclusive(channel, progress), writing(channel):
        channel.mkdir(parents=True, exist_ok=True)
        problems = check(channel, progress, whole=whole)
        quarantine = state_folder(channel) / QUARANTINE
        for problem in problems:
            if problem.kind in ("damaged", "foreign"):
                target = quarantine / f"{problem.path}.{uuid.uuid4().hex[:8]}"
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(channel / problem.path, target)
                progress.say(f"{problem}; moved to {target}")
        known = {} if problems else read_stamps(channel)
        _finish(channel, known, _read_journal(channel), progress)
    return problems
