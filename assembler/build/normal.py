"""Packages in normal form: the same inputs give the same bytes.

rattler-build writes the time, the order of its work and its own build path into a package. This
module rewrites a finished ``.conda`` as a stream: constant times and owners, modes 0644 or 0755,
one placeholder for the prefix, the input key in the build string and in ``info/assembler.json``,
a pinned compressor. Files of the package are otherwise passed through byte for byte; the bytecode
of its modules, where there is a compiler, comes before them, so that a reader of the stream knows
which modules have some.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from assembler.build.compilation import Compiler
from assembler.build.component import component
from assembler.digest import canonical_json
from assembler.errors import BuildError

# Part of every input key: raise it when the same inputs may give other bytes.
FORMAT = 3
# 2025-01-01T00:00:00Z, the time of every file and package. Seconds; conda's index counts in
# milliseconds, and zip files begin in 1980.
EPOCH = 1735689600
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
ZIP64_VERSION = 45  # of the zip format: entries that may pass 4 GB
ZIP_SIZES = 18  # where a local header has its two sizes of four bytes
PLACEHOLDER_LENGTH = 255
PLACEHOLDER = ("/opt/conda_prefix" + "_placehold" * 30)[:PLACEHOLDER_LENGTH]
# Level 9 costs seconds on small packages; on the few that are most of the bytes it costs minutes.
LARGE = 64 << 20
LEVEL_LARGE, LEVEL_SMALL = 3, 9
# zstd gives the same bytes for any number of threads but zero.
THREADS = 2
HASH = re.compile(r"h[0-9a-f]{7}")


@dataclass(frozen=True)
class Stamp:
    """What is written into a package beside its files."""

    input_key: str
    inputs: dict[str, Any]
    left_out: tuple[dict[str, Any], ...] = ()
    parts: tuple[dict[str, Any], ...] = ()

    def build_string(self, build: str) -> str:
        """Return the build string with the input key in place of rattler-build's variant hash."""
        return HASH.sub(f"h{self.input_key[:7]}", build, count=1)


def _member(name: str, size: int, *, executable: bool = False) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mode = 0o755 if executable else 0o644
    entry.mtime = EPOCH
    return entry


def _link(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.SYMTYPE
    entry.linkname = target
    entry.mode = 0o777
    entry.mtime = EPOCH
    return entry


@contextmanager
def _new_component(archive: zipfile.ZipFile, name: str, level: int) -> Iterator[tarfile.TarFile]:
    entry = zipfile.ZipInfo(name, ZIP_EPOCH)
    entry.external_attr = 0o644 << 16
    entry.create_version = entry.extract_version = ZIP64_VERSION
    compressor = zstandard.ZstdCompressor(level=level, threads=THREADS)
    with (
        archive.open(entry, "w", force_zip64=True) as raw,
        compressor.stream_writer(raw, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        yield tar


def _read_info(archive: zipfile.ZipFile) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    with component(archive, "info-") as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isfile() else None
            if stream is not None:
                files[member.name] = stream.read()
    return files


def _replaced(path: dict[str, Any], data: bytes) -> bytes:
    """Return a file's bytes with the one placeholder instead of the build's own path."""
    old = str(path["prefix_placeholder"])
    if path.get("file_mode") == "binary" and len(old) != PLACEHOLDER_LENGTH:
        raise BuildError(
            f"{path['_path']} holds a build path of {len(old)} bytes",
            remedy=f"build where the placeholder has {PLACEHOLDER_LENGTH} bytes",
        )
    path["prefix_placeholder"] = PLACEHOLDER
    return data.replace(old.encode(), PLACEHOLDER.encode())


def _copy_files(
    source: tarfile.TarFile, target: tarfile.TarFile, paths: dict[str, dict[str, Any]]
) -> None:
    previous: list[str] = []
    renewed: dict[str, str] = {}
    for member in source:
        if member.isdir():
            continue
        parts = member.name.split("/")
        if parts <= previous:
            raise BuildError(
                f"{member.name} comes after {'/'.join(previous)} in the built package",
                remedy="report it: this version of rattler-build orders packages differently",
            )
        previous = parts
        path = paths[member.name]
        if member.issym():
            target.addfile(_link(member.name, member.linkname))
            continue
        stream = source.extractfile(member)
        if stream is None:
            raise BuildError(
                f"{member.name} is neither a file nor a link", remedy="leave it out in the recipe"
            )
        executable = bool(member.mode & 0o111)
        if "prefix_placeholder" in path:
            data = _replaced(path, stream.read())
            sha256 = hashlib.sha256(data).hexdigest()
            renewed[path["sha256"]], path["sha256"] = sha256, sha256
            path["size_in_bytes"] = len(data)
            target.addfile(_member(member.name, len(data), executable=executable), io.BytesIO(data))
        else:
            target.addfile(_member(member.name, member.size, executable=executable), stream)
    for path in paths.values():
        if path.get("path_type") == "softlink" and path.get("sha256") in renewed:
            path["sha256"] = renewed[path["sha256"]]  # a link has the digest of what it leads to


def _write_bytecode(
    archive: zipfile.ZipFile,
    target: tarfile.TarFile,
    paths: dict[str, dict[str, Any]],
    compiler: Compiler,
) -> dict[str, dict[str, Any]]:
    """Add the bytecode of a package's modules, and return its records by path."""
    made: dict[str, dict[str, Any]] = {}
    with component(archive, "pkg-") as source:
        for record, data in compiler.compiled(source, paths):
            target.addfile(_member(record["_path"], len(data)), io.BytesIO(data))
            made[record["_path"]] = record
    return made


def _write_info(tar: tarfile.TarFile, files: dict[str, bytes]) -> None:
    for name in sorted(files):
        tar.addfile(_member(name, len(files[name])), io.BytesIO(files[name]))


def normalise(package: Path, folder: Path, stamp: Stamp, compiler: Compiler | None = None) -> Path:
    """Write the normal form of a built ``.conda`` into ``folder`` and return its path.

    With a ``compiler`` the package gets bytecode. The file appears under its final name only when
    it is whole. Memory stays bounded by the largest file that holds the prefix.
    """
    with zipfile.ZipFile(package) as archive:
        info = _read_info(archive)
        index = json.loads(info["info/index.json"])
        index["build"] = stamp.build_string(index["build"])
        index["timestamp"] = EPOCH * 1000
        about = json.loads(info.get("info/about.json", b"{}"))
        about.pop("channels", None)  # where the host packages lay on the building machine
        records = json.loads(info["info/paths.json"])
        paths = {path["_path"]: path for path in records["paths"]}
        total = sum(path.get("size_in_bytes", 0) for path in paths.values())
        level = LEVEL_LARGE if total >= LARGE else LEVEL_SMALL

        stem = f"{index['name']}-{index['version']}-{index['build']}"
        folder.mkdir(parents=True, exist_ok=True)
        final = folder / f"{stem}.conda"
        partial = final.with_suffix(".part")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as result:
            head = zipfile.ZipInfo("metadata.json", ZIP_EPOCH)
            head.external_attr = 0o644 << 16
            result.writestr(head, b'{"conda_pkg_format_version":2}')
            with _new_component(result, f"pkg-{stem}.tar.zst", level) as target:
                made = _write_bytecode(archive, target, paths, compiler) if compiler else {}
                with component(archive, "pkg-") as source:
                    _copy_files(source, target, paths)
            paths |= made
            records["paths"] = [paths[name] for name in sorted(paths)]
            info["info/about.json"] = canonical_json(about)
            info["info/index.json"] = canonical_json(index)
            info["info/paths.json"] = canonical_json(records)
            facts = {
                "format": FORMAT,
                "input_key": stamp.input_key,
                "inputs": stamp.inputs,
                "left_out": list(stamp.left_out),
            }
            # What device packages were made of, by target: also by targets that nobody asked for.
            facts |= {"parts": list(stamp.parts)} if stamp.parts else {}
            info["info/assembler.json"] = canonical_json(facts)
            with _new_component(result, f"info-{stem}.tar.zst", LEVEL_SMALL) as target:
                _write_info(target, info)
    _settle_sizes(partial)
    partial.replace(final)
    return final


def _settle_sizes(package: Path) -> None:
    """Say in each streamed component's local header that its sizes stand in the ZIP64 field.

    CPython does so from 3.11.4 on; earlier releases write them in both places.
    """
    with zipfile.ZipFile(package) as archive:
        entries = [one for one in archive.infolist() if one.extract_version == ZIP64_VERSION]
    with package.open("r+b") as stream:
        for entry in entries:
            stream.seek(entry.header_offset + ZIP_SIZES)
            stream.write(b"\xff" * 8)


def read_stamp(package: Path) -> dict[str, Any]:
    """Return ``info/assembler.json`` of a package, or an empty object when it has none."""
    with zipfile.ZipFile(package) as archive, component(archive, "info-") as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.name == "info/assembler.json" else None
            if stream is not None:
                data: dict[str, Any] = json.loads(stream.read())
                return data
    return {}
