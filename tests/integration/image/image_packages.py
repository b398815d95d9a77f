"""Conda packages with all that a package may hold, and what an install makes of them."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import shutil
import stat
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard

from assembler.channel.records import inspect
from assembler.image.layout import Layout
from assembler.lock.model import Lock, LockedPackage
from assembler.lock.pixi import repodata_record

PLACEHOLDER = "/opt/" + "placehold_" * 12
TIMESTAMP = 1_750_000_000
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"

# A profile that builds nothing: commands work with the channel and lock that a test made.
STACK = """
default_profile = "tiny"
[profile.tiny]
summary = "test"
python = "3.11"
variants = []
recipes = []
root = "tiny"
root_without_source = "tiny"
[profile.tiny.virtual_packages]
__unix = "0"
[profile.tiny.image]
name = "tiny"
user = "65532:65532"
entrypoint = ["/opt/atom/bin/tiny"]
[profile.tiny.image.base]
suite = "trixie"
glibc = "2.41"
packages = []
"""


@dataclass(frozen=True)
class Item:
    """A member of a package: a file, or a link to ``target``."""

    path: str
    data: bytes = b""
    mode: int = 0o644
    kind: str = "file"  # file, symlink, hardlink, directory
    target: str = ""
    prefixed: str = ""  # text or binary: PLACEHOLDER is in it
    listed: bool = True


def _tar(members: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return zstandard.ZstdCompressor(level=1).compress(out.getvalue())


def _member(item: Item) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(item.path)
    info.mtime, info.mode = TIMESTAMP, item.mode
    if item.kind == "symlink":
        info.type, info.linkname = tarfile.SYMTYPE, item.target
    elif item.kind == "hardlink":
        info.type, info.linkname = tarfile.LNKTYPE, item.target
    elif item.kind == "directory":
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    else:
        info.size = len(item.data)
    return info, item.data


def _path_entry(item: Item, contents: dict[str, bytes]) -> dict[str, object]:
    kinds = {"symlink": "softlink", "directory": "directory"}
    entry: dict[str, object] = {
        "_path": item.path,
        "path_type": kinds.get(item.kind, "hardlink"),
    }
    if item.kind in ("file", "hardlink"):
        data = contents[item.target] if item.kind == "hardlink" else item.data
        entry["sha256"] = hashlib.sha256(data).hexdigest()
        entry["size_in_bytes"] = len(data)
    if item.prefixed:
        entry |= {"file_mode": item.prefixed, "prefix_placeholder": PLACEHOLDER}
    return entry


def make_conda(
    channel: Path,
    name: str,
    items: Sequence[Item],
    *,
    version: str = "1.0",
    build: str = "h0000000_0",
    number: int = 0,
    noarch_python: bool = False,
    entry_points: Sequence[str] = (),
    depends: Sequence[str] = (),
    timestamp: int = TIMESTAMP,
    licence: str = "MIT",
) -> Path:
    """Write a package into the channel and return its path."""
    subdir = "noarch" if noarch_python else "linux-64"
    index: dict[str, object] = {
        "name": name, "version": version, "build": build, "build_number": number,
        "depends": list(depends), "subdir": subdir, "timestamp": timestamp * 1000,
        "license": licence,
    }  # fmt: skip
    if noarch_python:
        index["noarch"] = "python"
    else:
        index |= {"arch": "x86_64", "platform": "linux"}
    contents = {item.path: item.data for item in items}
    paths = {"paths": [_path_entry(i, contents) for i in items if i.listed], "paths_version": 1}
    info = {"info/index.json": index, "info/paths.json": paths, "info/about.json": {}}
    if noarch_python:
        info["info/link.json"] = {
            "noarch": {"type": "python", "entry_points": list(entry_points)},
            "package_metadata_version": 1,
        }
    texts = [Item(path, json.dumps(data).encode()) for path, data in info.items()]
    stem = f"{name}-{version}-{build}"
    place = channel / subdir / f"{stem}.conda"
    place.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(place, "w", zipfile.ZIP_STORED) as archive:
        for member, data in (
            ("metadata.json", b'{"conda_pkg_format_version": 2}'),
            (f"pkg-{stem}.tar.zst", _tar([_member(item) for item in items])),
            (f"info-{stem}.tar.zst", _tar([_member(item) for item in texts])),
        ):
            archive.writestr(zipfile.ZipInfo(member), data)
    return place


def make_python(channel: Path) -> Path:
    """Write a python package whose interpreter is the one that runs the tests."""
    script = f'#!/bin/sh\nexec {sys.executable} "$@"\n'.encode()
    items = [
        Item(f"bin/python{PYTHON}", script, 0o755),
        Item("bin/python", kind="symlink", target=f"python{PYTHON}"),
        Item(f"lib/python{PYTHON}/os_like.py", b"import sys\n\nNAME = 'posix'\n"),
        Item(f"lib/python{PYTHON}/broken.py", b"this is no python\n"),
    ]
    return make_conda(channel, "python", items, version=f"{PYTHON}.0")


def fill_channel(channel: Path) -> Path:
    """Write one package of every kind into a channel."""
    make_python(channel)
    prefix = PLACEHOLDER.encode()
    make_conda(
        channel,
        "tiny",
        [
            Item("bin/tiny", b"#!" + prefix + b"/bin/python\nprint(1)\n", 0o755, prefixed="text"),
            Item("etc/empty", b""),
            Item("lib/bin.dat", b"\0" + prefix + b"/a:" + prefix + b"\0end", prefixed="binary"),
            Item("lib/first", b"shared", 0o755),
            Item("lib/second", kind="hardlink", target="lib/first", mode=0o755),
            Item("lib/third", kind="symlink", target="first"),
            Item("share/.hidden/.dot", b"dot", 0o600),
            Item("share/naïve name", b"utf-8"),
            Item("share/" + "long/" * 60 + "name", b"deep"),
            Item("share/unlisted", b"not installed", listed=False),
        ],
        depends=["python"],
    )  # fmt: skip
    make_conda(
        channel,
        "pure",
        [
            Item("site-packages/pure/__init__.py", b"def main():\n    return 0\n"),
            Item("site-packages/pure/data.txt", b"text"),
            Item("python-scripts/pure-script", b"#!/bin/sh\n", 0o755),
            Item("share/pure/readme", b"read me"),
        ],
        noarch_python=True,
        entry_points=["pure = pure:main", "pure-x = pure.cli:App.run"],
        depends=["python"],
    )
    return channel


def lock_of(
    channel: Path, *, base: tuple = (), gfx: tuple[str, ...] = (), specs: tuple[str, ...] = ()
) -> Lock:
    """Return a lock of everything in a channel."""
    packages = [
        LockedPackage.from_record(inspect(path).record)
        for path in sorted(channel.glob("*/*.conda"))
    ]
    return Lock(
        profile="tiny",
        platform="linux-64",
        specs=specs or (packages[-1].name,),
        channels=("./channel",),
        packages=tuple(packages),
        base=base,
        gfx_targets=gfx,
    )


def install(lock: Lock, channel: Path, folder: Path, prefix: str) -> None:
    """Install a lock with py-rattler into ``folder`` as if it were at ``prefix``."""
    from rattler import install as rattler_install

    asyncio.run(
        rattler_install(
            [repodata_record(package, channel) for package in lock.packages],
            folder,
            cache_dir=folder.parent / "rattler-cache",
            show_progress=False,
            alternative_target_prefix=prefix,
        )
    )


Facts = tuple[str, bool, bytes]  # kind, executable, content or link target


def installed(folder: Path) -> dict[str, Facts]:
    """Return everything below a folder, by relative path."""
    found: dict[str, Facts] = {}
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(root) / name
            relative = str(path.relative_to(folder))
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                found[relative] = ("symlink", False, os.fsencode(path.readlink()))
            elif stat.S_ISDIR(mode):
                found[relative] = ("directory", True, b"")
            else:
                found[relative] = ("file", bool(mode & 0o111), path.read_bytes())
    return found


def layers(layout: Path, tag: str = "latest") -> Iterator[bytes]:
    """Yield the uncompressed layers of an image, bottom first."""
    source = Layout(layout)
    for entry in source.entries():
        if entry["annotations"]["org.opencontainers.image.ref.name"] != tag:
            continue
        manifest = source.document(entry["digest"])
        assert manifest is not None
        for layer in manifest["layers"]:
            data = source.blob(layer["digest"]).read_bytes()
            with zstandard.ZstdDecompressor().stream_reader(
                io.BytesIO(data), read_across_frames=True
            ) as stream:
                yield stream.read()


def members(data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return a layer's entries with their content."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [
            (info, (archive.extractfile(info) or io.BytesIO()).read() if info.isreg() else b"")
            for info in archive
        ]


def union(layout: Path, prefix: str) -> dict[str, Facts]:
    """Return what the layers hold below the prefix, upper over lower, by relative path."""
    root = prefix.strip("/") + "/"
    found: dict[str, Facts] = {}
    for layer in layers(layout):
        here: dict[str, Facts] = {}
        for info, data in members(layer):
            if not info.name.startswith(root):
                continue
            if info.issym():
                fact: Facts = ("symlink", False, os.fsencode(info.linkname))
            elif info.isdir():
                fact = ("directory", True, b"")
            elif info.islnk():
                fact = here[info.linkname]
            else:
                fact = ("file", bool(info.mode & 0o111), data)
            here[info.name] = fact
        found.update(here)
    return {name.removeprefix(root): fact for name, fact in found.items()}


def need(program: str) -> str:
    """Return a program's path; the test is skipped where it is not installed."""
    found = shutil.which(program)
    if not found:
        pytest.skip(f"{program} is not installed")
    return found
