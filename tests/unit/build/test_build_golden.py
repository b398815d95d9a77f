"""The bytes of a package in normal form change only with FORMAT."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import tarfile
import zipfile
from pathlib import Path

import zstandard

from assembler.build.normal import FORMAT, PLACEHOLDER_LENGTH, Stamp, normalise

GOLDEN = Path(__file__).parents[2] / "golden" / "package_digest.json"
UPDATE = "ASSEMBLER_UPDATE_GOLDEN"
BUILD_PATH = ("/build/host_env" + "_placehold" * 30)[:PLACEHOLDER_LENGTH]
KEY = "0123456789abcdef" * 4
FILES = {
    "bin/run": (f"#!{BUILD_PATH}/bin/python\nprint('ran')\n".encode(), 0o755),
    "lib/libpart.so": (b"\x7fELF" + BUILD_PATH.encode() + b"/lib\0" * 3, 0o644),
    "share/" + "long" * 40: (b"a path that needs more than a plain header\n", 0o600),
    # Enough that the compressor has choices to make.
    "share/noise": (random.Random(1).randbytes(50_000) + b"pattern " * 20_000, 0o664),
    "share/ünicode": (b"", 0o644),
}
LINK = ("share/run", "../bin/run")


def _tar_zst(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member, data in members:
            member.mtime = 1_700_000_000
            tar.addfile(member, io.BytesIO(data))
    return zstandard.ZstdCompressor(level=1).compress(out.getvalue())


def _member(name: str, data: bytes, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    return member, data


def _built(folder: Path) -> Path:
    """Write a package as a builder leaves it: other times, owners, modes, order of its records."""
    paths = [
        {
            "_path": name,
            "path_type": "hardlink",
            "sha256": hashlib.sha256(data).hexdigest(),
            "size_in_bytes": len(data),
            **(
                {
                    "prefix_placeholder": BUILD_PATH,
                    "file_mode": "text" if data.startswith(b"#!") else "binary",
                }
                if BUILD_PATH.encode() in data
                else {}
            ),
        }
        for name, (data, _mode) in reversed(FILES.items())
    ]
    target = hashlib.sha256(FILES["bin/run"][0]).hexdigest()
    paths.insert(2, {"_path": LINK[0], "path_type": "softlink", "sha256": target})
    index = {"name": "golden", "version": "1.0", "build": "h0000000_0", "build_number": 0,
             "subdir": "linux-64", "depends": [], "timestamp": 1_700_000_000_000}  # fmt: skip
    about = {"channels": ["file:///somewhere"], "summary": "golden"}
    info = {
        "info/about.json": json.dumps(about).encode(),
        "info/index.json": json.dumps(index, indent=1).encode(),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}).encode(),
        "info/licenses/LICENSE": b"free\n",
    }
    link = tarfile.TarInfo(LINK[0])
    link.type, link.linkname = tarfile.SYMTYPE, LINK[1]
    members = [_member(name, *facts) for name, facts in FILES.items()] + [(link, b"")]
    members.sort(key=lambda one: one[0].name.split("/"))
    package = folder / "golden-1.0-h0000000_0.conda"
    with zipfile.ZipFile(package, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("metadata.json", '{"conda_pkg_format_version": 2}')
        archive.writestr("info-golden-1.0-h0000000_0.tar.zst",
                         _tar_zst([_member(*one) for one in info.items()]))  # fmt: skip
        archive.writestr("pkg-golden-1.0-h0000000_0.tar.zst", _tar_zst(members))
    return package


def test_golden_digest(tmp_path: Path) -> None:
    stamp = Stamp(KEY, {"recipe": {"build.sh": "a"}}, left_out=({"rule": "x", "bytes": 1},))
    package = normalise(_built(tmp_path), tmp_path / "out", stamp)
    assert package.name == "golden-1.0-h0123456_0.conda"
    found = {"format": FORMAT, "sha256": hashlib.sha256(package.read_bytes()).hexdigest()}
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get(UPDATE) and golden.get("format") != FORMAT:
        GOLDEN.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
        golden = found
    assert found == golden, (
        "normalise() gives other bytes for the same package: raise FORMAT in "
        "assembler/build/normal.py, so that published packages are built again under new names, "
        f"and run this test once with {UPDATE}=1 (which takes no new digest for an old FORMAT)"
    )
