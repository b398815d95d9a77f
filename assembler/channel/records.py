"""One package of a channel: what its archive says of itself, and what the index says of it."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tarfile import TarError
from typing import Any

from conda_package_streaming import package_streaming
from zstandard import ZstdError

from assembler.channel.location import KNOWN_SUBDIRS, split_file
from assembler.digest import CHUNK
from assembler.errors import ChannelError

# A package's own description is small; a larger one is damage or an attack on memory.
LARGEST_INFO_FILE = 256 << 20
INDEX_MEMBER = "info/index.json"
ASSEMBLER_MEMBER = "info/assembler.json"
REMEDY = "build or download the package again"


def _words(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{value!r} is not a list of words")
    return tuple(value)


@dataclass(frozen=True, order=True)
class Record:
    """A package as the index names it; ``size`` in bytes, ``timestamp`` in ms since 1970."""

    name: str
    version: str
    build: str
    build_number: int
    subdir: str
    file: str
    sha256: str
    md5: str
    size: int
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    license: str = ""
    timestamp: int | None = None
    noarch: str | None = None

    @property
    def path(self) -> str:
        """The package's place in the channel: ``<subdir>/<file>``."""
        return f"{self.subdir}/{self.file}"

    @classmethod
    def from_entry(cls, subdir: str, file: str, entry: Mapping[str, Any]) -> Record:
        """Return the record of an entry of repodata.json; ChannelError when a field is missing."""
        try:
            noarch = entry.get("noarch")
            return cls(
                name=str(entry["name"]),
                version=str(entry["version"]),
                build=str(entry["build"]),
                build_number=int(entry["build_number"]),
                subdir=subdir,
                file=file,
                sha256=str(entry["sha256"]),
                md5=str(entry["md5"]),
                size=int(entry["size"]),
                depends=_words(entry.get("depends")),
                constrains=_words(entry.get("constrains")),
                license=str(entry.get("license") or ""),
                timestamp=int(entry["timestamp"]) if entry.get("timestamp") else None,
                noarch="generic" if noarch is True else noarch or None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ChannelError(
                f"the entry of {subdir}/{file} is malformed ({error!r})",
                remedy="run `assembler channel repair`",
            ) from None


@dataclass(frozen=True)
class Archive:
    """A package file that was read from end to end and found whole."""

    path: Path
    entry: Mapping[str, Any]
    input_key: str | None

    @property
    def subdir(self) -> str:
        """The subdir the package belongs in."""
        return str(self.entry["subdir"])

    @property
    def record(self) -> Record:
        """The package as the index will name it."""
        return Record.from_entry(self.subdir, self.path.name, self.entry)


class DamagedError(ChannelError):
    """A package file is truncated, empty, or not the package that its name says."""


def _hashes(path: Path) -> tuple[str, str, int]:
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    size = 0
    with path.open("rb") as stream:
        while data := stream.read(CHUNK):
            sha256.update(data)
            md5.update(data)
            size += len(data)
    return sha256.hexdigest(), md5.hexdigest(), size


def _check_zip(path: Path, stem: str) -> None:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        for wanted in ("metadata.json", f"info-{stem}.tar.zst", f"pkg-{stem}.tar.zst"):
            if names.count(wanted) != 1:
                raise DamagedError(f"{path} has no single {wanted}", remedy=REMEDY)
        if broken := archive.testzip():
            raise DamagedError(f"{broken} in {path} is corrupt", remedy=REMEDY)


def _info_members(path: Path) -> Iterator[tuple[str, bytes]]:
    for tar, member in package_streaming.stream_conda_info(str(path)):
        if member.isfile() and member.size <= LARGEST_INFO_FILE:
            handle = tar.extractfile(member)
            if handle is not None:
                yield member.name.removeprefix("./"), handle.read()


def read_info(path: Path, *members: str) -> dict[str, bytes]:
    """Return the named members of a package's ``info/`` folder that exist.

    Raises DamagedError when the archive cannot be read.
    """
    found: dict[str, bytes] = {}
    try:
        for name, data in _info_members(path):
            if name in members:
                found[name] = data
                if len(found) == len(members):
                    break
    except FileNotFoundError:
        raise ChannelError(f"there is no package {path}", remedy=REMEDY) from None
    except (zipfile.BadZipFile, ZstdError, TarError, EOFError, ValueError, OSError, KeyError) as e:
        raise DamagedError(f"{path} is not a readable conda package ({e})", remedy=REMEDY) from None
    return found


def _load(path: Path, member: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise DamagedError(f"{member} of {path} is not JSON ({error})", remedy=REMEDY) from None
    if not isinstance(value, dict):
        raise DamagedError(f"{member} of {path} is not a JSON object", remedy=REMEDY)
    return value


def inspect(path: Path) -> Archive:
    """Read a package file whole: checksums, its own description, and that both fit its name.

    Raises DamagedError (a ChannelError) that says what is wrong with it.
    """
    parts = split_file(path.name)
    if parts is None:
        raise DamagedError(f"{path} is not named like a conda package", remedy="remove it")
    if not path.is_file() or path.is_symlink():
        raise DamagedError(f"{path} is not a regular file", remedy=REMEDY)
    if not path.stat().st_size:
        raise DamagedError(f"{path} is empty", remedy=REMEDY)
    sha256, md5, size = _hashes(path)
    if parts[3] == ".conda":
        try:
            _check_zip(path, path.name.removesuffix(".conda"))
        except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
            raise DamagedError(
                f"{path} is not a whole .conda file ({error})", remedy=REMEDY
            ) from None
    info = read_info(path, INDEX_MEMBER, ASSEMBLER_MEMBER)
    if INDEX_MEMBER not in info:
        raise DamagedError(f"{path} has no {INDEX_MEMBER}", remedy=REMEDY)
    index = _load(path, INDEX_MEMBER, info[INDEX_MEMBER])
    named = tuple(str(index.get(key)) for key in ("name", "version", "build"))
    if named != parts[:3]:
        raise DamagedError(
            f"{path} describes itself as {'-'.join(named)}", remedy="give it that name again"
        )
    if index.get("subdir") not in KNOWN_SUBDIRS:
        raise DamagedError(
            f"{path} is for {index.get('subdir')!r}",
            remedy=f"this project's channels hold {', '.join(sorted(KNOWN_SUBDIRS))}",
        )
    entry = {**index, "sha256": sha256, "md5": md5, "size": size}
    # The time of indexing must never enter the index: it would make every index differ.
    entry.pop("indexed_timestamp", None)
    archive = Archive(path, entry, None)
    try:
        Record.from_entry(archive.subdir, path.name, entry)
    except ChannelError as error:
        raise DamagedError(f"{path} describes itself wrongly: {error.saw}", remedy=REMEDY) from None
    key = None
    if ASSEMBLER_MEMBER in info:
        key = _load(path, ASSEMBLER_MEMBER, info[ASSEMBLER_MEMBER]).get("input_key")
    return Archive(path, entry, str(key) if key is not None else None)
