"""A tiny image to try sandboxes with: one static program that ends with a known exit status."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path

from assembler.verify.oci import LayoutFolder, OciImage, read_images
from assembler.verify.tree import Entry, Tree

STATUS = 42
PROGRAM = "bin/probe"
# mov eax, 60 (exit); mov edi, 42; syscall
_CODE = b"\xb8\x3c\x00\x00\x00\xbf" + struct.pack("<I", STATUS) + b"\x0f\x05"
_BASE = 0x400000
_HEADERS = 64 + 56


def program() -> bytes:
    """Return a static x86-64 ELF executable of 132 bytes that calls exit(42)."""
    size = _HEADERS + len(_CODE)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + load + _CODE


def write_layout(folder: Path) -> OciImage:
    """Write the probe image as an OCI layout and return it read back."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("bin", "tmp", "proc", "dev", "sys"):
            item = tarfile.TarInfo(name)
            item.type, item.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(item)
        item = tarfile.TarInfo(PROGRAM)
        item.size, item.mode = len(program()), 0o755
        archive.addfile(item, io.BytesIO(program()))
    kind = "application/vnd.oci.image"
    layer = blob(tar.getvalue(), f"{kind}.layer.v1.tar")
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"User": "65532:65532", "Entrypoint": [f"/{PROGRAM}"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), f"{kind}.config.v1+json"),
        "layers": [layer],
    }
    listed = blob(json.dumps(manifest).encode(), f"{kind}.manifest.v1+json")
    listed["annotations"] = {"org.opencontainers.image.ref.name": "probe"}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [listed]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return read_images(folder, LayoutFolder(folder))[0]


def write_tree(folder: Path) -> Tree:
    """Write the probe's layout and its unpacked copy below ``folder``; return it as a tree."""
    image = write_layout(folder / "layout")
    root = folder / "root"
    for name in ("bin", "tmp", "proc", "dev", "sys"):
        (root / name).mkdir(parents=True)
    place = root / PROGRAM
    place.write_bytes(program())
    place.chmod(0o755)
    for path in (folder, root, root / "bin"):
        path.chmod(0o755)
    (root / "tmp").chmod(0o1777)
    return Tree(
        label="probe",
        kind="image",
        origin=folder / "layout",
        root=root,
        entries={PROGRAM: Entry(PROGRAM, "file", 0o755, len(program()))},
        digest=image.manifest.digest,
        config=image.config,
        image=image,
    )
