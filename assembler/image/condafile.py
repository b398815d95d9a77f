"""Conda packages read as streams: what a package says of itself, and its files one after the other.

Formats: .conda (a stored zip with an info and a pkg tar, each one zstd stream) and .tar.bz2.
Nothing is unpacked to disk. Only files named in info/paths.json count, as for all installers.
Source: conda packages CEPs; rattler's treatment of info/paths.json and info/link.json.
"""

from __future__ import annotations

import bz2
import json
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from assembler.digest import CHUNK, sha256_file
from assembler.errors import ChannelError, HashMismatchError, ImageError

INFO_FILES = ("info/index.json", "info/paths.json", "info/link.json")
# zlib's, zstd's and tar's ways to say that a file is cut short or damaged.
_DAMAGE = (
    zipfile.BadZipFile,
    zstandard.ZstdError,
    tarfile.TarError,
    EOFError,
    KeyError,
    ValueError,
    NotImplementedError,
)


@dataclass(frozen=True)
class PathEntry:
    """A line of info/paths.json; ``placeholder`` is the prefix to replace, if any."""

    path: str
    path_type: str
    placeholder: str | None = None
    file_mode: str = "text"
    sha256: str | None = None
    size: int | None = None
    no_link: bool = False


@dataclass(frozen=True)
class EntryPoint:
    """A console script: ``command = module:function``."""

    command: str
    module: str
    function: str


@dataclass(frozen=True)
class PackageInfo:
    """What a package's info/ says, as far as installing it goes."""

    file: str
    index: Mapping[str, Any]
    paths: tuple[PathEntry, ...]
    entry_points: tuple[EntryPoint, ...] = ()

    @property
    def name(self) -> str:
        """The package's name."""
        return str(self.index["name"])

    @property
    def is_noarch_python(self) -> bool:
        """Whether its files belong into whichever python's site-packages."""
        return self.index.get("noarch") == "python"

    @property
    def depends(self) -> tuple[str, ...]:
        """The package's dependencies as match specs."""
        return tuple(map(str, self.index.get("depends") or ()))

    @property
    def timestamp(self) -> int:
        """When the package says it was made, in seconds since 1970 (0 when it does not)."""
        value = int(self.index.get("timestamp") or 0)
        # The field is in milliseconds; some old tools wrote seconds.
        return value // 1000 if value > 10**11 else value


@dataclass(frozen=True)
class Member:
    """One entry of a package's tar; ``content`` is None for links and directories."""

    info: tarfile.TarInfo
    content: IO[bytes] | None

    @property
    def name(self) -> str:
        """The path inside the package."""
        return plain_name(self.info.name)


def plain_name(name: str) -> str:
    """Return a tar member's name without a leading ``./``."""
    return name.removeprefix("./").rstrip("/")


def damaged(package: Path, error: Exception | str) -> ChannelError:
    """Return the error for a package that is cut short or otherwise unreadable."""
    return ChannelError(
        f"{package} is not a whole conda package ({error})",
        remedy="build or download it again, then run `assembler channel repair`",
    )


@contextmanager
def _open_tar(package: Path, component: str) -> Iterator[IO[bytes]]:
    """Open the uncompressed tar stream of a package's info or pkg part."""
    with ExitStack() as stack:
        if package.name.endswith(".tar.bz2"):
            yield cast("IO[bytes]", stack.enter_context(bz2.open(package)))
            return
        archive = stack.enter_context(zipfile.ZipFile(package))
        raw = stack.enter_context(
            archive.open(f"{component}-{package.name.removesuffix('.conda')}.tar.zst")
        )
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        yield cast(
            "IO[bytes]",
            stack.enter_context(
                decompressor.stream_reader(raw, read_size=CHUNK, read_across_frames=True)
            ),
        )


def members(package: Path, component: str = "pkg") -> Iterator[Member]:
    """Yield a package's entries in its own order; a member's content is good until the next one.

    Raises ChannelError when the package is damaged.
    """
    old = package.name.endswith(".tar.bz2")
    try:
        with (
            _open_tar(package, component) as stream,
            # Not "r|": that copies the rest of its buffer for each header. Seeks only go forward.
            tarfile.open(fileobj=stream, mode="r:", errors="surrogateescape") as archive,
        ):
            for info in archive:
                if old and plain_name(info.name).startswith("info/") is (component == "pkg"):
                    continue
                yield Member(info, archive.extractfile(info) if info.isreg() else None)
                # tarfile remembers every member; a package may have hundreds of thousands.
                archive.members = []  # type: ignore[attr-defined]
    except _DAMAGE as error:
        raise damaged(package, error) from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise damaged(package, error) from None


def _entry_point(text: str, file: str) -> EntryPoint:
    command, equals, call = text.partition("=")
    module, colon, function = call.partition(":")
    command, module, function = command.strip(), module.strip(), function.strip()
    names = [*module.split("."), *function.split(".")]
    bad = not command or command.startswith(".") or any(c in command for c in "/\\\0")
    if not equals or not colon or bad or not all(n.isascii() and n.isidentifier() for n in names):
        raise ImageError(
            f"{file} has the entry point {text!r}, which is not `command = module:function`",
            remedy="correct the recipe's entry_points and build it again",
        )
    return EntryPoint(command, module, function)


def _paths(data: Mapping[str, Any]) -> tuple[PathEntry, ...]:
    return tuple(
        PathEntry(
            path=item["_path"],
            path_type=item["path_type"],
            placeholder=item.get("prefix_placeholder") or None,
            file_mode=item.get("file_mode") or "text",
            sha256=item.get("sha256"),
            size=item.get("size_in_bytes"),
            no_link=bool(item.get("no_link", False)),
        )
        for item in data["paths"]
    )


def read_package(package: Path) -> PackageInfo:
    """Read a package's description; ChannelError when the file is missing or damaged."""
    found: dict[str, Any] = {}
    try:
        for member in members(package, "info"):
            if member.name in INFO_FILES and member.content is not None:
                found[member.name] = json.load(member.content)
        index, paths = found["info/index.json"], _paths(found["info/paths.json"])
        link = found.get("info/link.json", {}).get("noarch", {})
        points = link.get("entry_points") or () if index.get("noarch") == "python" else ()
        return PackageInfo(
            file=package.name,
            index=index,
            paths=tuple(sorted(paths, key=lambda entry: entry.path)),
            entry_points=tuple(_entry_point(text, package.name) for text in points),
        )
    except FileNotFoundError:
        raise ChannelError(
            f"there is no {package}",
            remedy="build the channel again, or lock what it holds now",
        ) from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise damaged(package, repr(error)) from None


def check_package(package: Path, sha256: str) -> None:
    """Raise HashMismatchError unless a package's bytes are the locked ones."""
    found = sha256_file(package)
    if found != sha256:
        raise HashMismatchError(
            f"{package} has the SHA-256 {found}, but the lock says {sha256}",
            remedy="build that package again, or make the lock anew with `assembler lock`",
        )
