"""Makes conda packages of a few hundred bytes, the same bytes for the same arguments."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import zstandard

PLACEHOLDER = "/opt/placeholder_placeholder_placeholder_placeholder_placeholder_placeholder"


def _tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(files[name]), 0o644, 1735689600
            tar.addfile(member, io.BytesIO(files[name]))
    return zstandard.ZstdCompressor(level=3).compress(out.getvalue())


def make_package(
    folder: Path,
    name: str,
    version: str = "1.0",
    build: str = "h0000000_0",
    *,
    number: int = 0,
    subdir: str = "noarch",
    depends: Sequence[str] = (),
    constrains: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
    prefixed: Mapping[str, str] | None = None,
    licence: str = "MIT",
    input_key: str | None = None,
    file: str | None = None,
    index: Mapping[str, object] | None = None,
) -> Path:
    """Write ``<folder>/<name>-<version>-<build>.conda`` and return its path.

    ``prefixed`` names text files in which ``{prefix}`` stands for the prefix of the installation.
    """
    payload = dict(
        files if files is not None else {f"share/{name}.txt": f"{name} {version}".encode()}
    )
    texts = {
        path: text.replace("{prefix}", PLACEHOLDER).encode()
        for path, text in (prefixed or {}).items()
    }
    paths = [
        {
            "_path": path,
            "path_type": "hardlink",
            "sha256": hashlib.sha256(data).hexdigest(),
            "size_in_bytes": len(data),
            **({"file_mode": "text", "prefix_placeholder": PLACEHOLDER} if path in texts else {}),
        }
        for path, data in sorted({**payload, **texts}.items())
    ]
    description: dict[str, object] = {
        "arch": None if subdir == "noarch" else "x86_64",
        "build": build,
        "build_number": number,
        "constrains": list(constrains),
        "depends": list(depends),
        "license": licence,
        "name": name,
        "platform": None if subdir == "noarch" else "linux",
        "subdir": subdir,
        "timestamp": 1735689600000,
        "version": version,
    }
    if subdir == "noarch":
        description["noarch"] = "generic"
    description |= dict(index or {})
    info = {
        "info/index.json": json.dumps(description, sort_keys=True).encode(),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}).encode(),
        "info/about.json": b"{}",
    }
    if input_key is not None:
        info["info/assembler.json"] = json.dumps({"format": 1, "input_key": input_key}).encode()
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{version}-{build}"
    path = folder / (file or f"{stem}.conda")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for member, data in (
            ("metadata.json", b'{"conda_pkg_format_version": 2}'),
            (f"pkg-{stem}.tar.zst", _tar({**payload, **texts})),
            (f"info-{stem}.tar.zst", _tar(info)),
        ):
            archive.writestr(zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0)), data)
    return path
