"""Makes tiny trees, images and packages on the spot, for tests of the gates."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard

from assembler.verify.config import ImageConfig
from assembler.verify.tree import Entry, Tree, TreeKind
from assembler.verify.unpack import list_folder

USER = "65532:65532"


@dataclass(frozen=True)
class Item:
    """A file (``data``), a link (``target``), a hard link (``hard``) or a folder (neither)."""

    data: bytes | None = None
    mode: int | None = None
    target: str | None = None
    hard: str | None = None
    fifo: bool = False
    uid: int = 0
    gid: int = 0
    mtime: int = 0


Files = Mapping[str, "bytes | str | Item"]


def item_of(value: bytes | str | Item) -> Item:
    """Return what a shorthand means: text and bytes are files."""
    if isinstance(value, Item):
        return value
    return Item(value.encode() if isinstance(value, str) else value)


def make_tree(
    root: Path,
    files: Files,
    *,
    kind: TreeKind = "image",
    env: Mapping[str, str] | None = None,
    user: str = USER,
    entrypoint: Sequence[str] = (),
    layers: Sequence[int] = (1000,),
    prefix: str | None = None,
    label: str = "tiny",
) -> Tree:
    """Write files below ``root`` and return them as a tree with the metadata that was asked for."""
    root.mkdir(parents=True, exist_ok=True)
    asked: dict[str, Item] = {}
    for path, value in files.items():
        item = asked[path] = item_of(value)
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if item.target is not None:
            place.symlink_to(item.target)
        elif item.hard is not None:
            place.hardlink_to(root / item.hard)
        elif item.data is not None:
            place.write_bytes(item.data)
        elif not item.fifo:
            place.mkdir(exist_ok=True)
    entries = list_folder(root)
    for path, entry in list(entries.items()):
        item = asked.get(path, Item())
        default = 0o755 if entry.kind == "directory" else 0o644
        entries[path] = Entry(
            path=path,
            kind=entry.kind,
            mode=item.mode if item.mode is not None else default,
            size=entry.size,
            target=entry.target,
            hardlink=item.hard,
            uid=item.uid,
            gid=item.gid,
            mtime=item.mtime,
        )
    for path, item in asked.items():
        if item.fifo:
            entries[path] = Entry(path, "other", item.mode or 0o644)
    config = None
    if kind == "image":
        config = ImageConfig(
            env=dict(env or {}),
            user=user,
            entrypoint=tuple(entrypoint),
            layer_sizes=tuple(layers),
        )
    return Tree(
        label=label,
        kind=kind,
        origin=root,
        root=root,
        entries=entries,
        config=config,
        prefix=prefix,
    )


# -- archives --------------------------------------------------------------------------------------


def make_tar(files: Files) -> bytes:
    """Return a tar of the files in the given order; folders above them are not added."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, value in files.items():
            item = item_of(value)
            member = tarfile.TarInfo(path)
            member.uid, member.gid, member.mtime = item.uid, item.gid, item.mtime
            member.mode = (
                item.mode if item.mode is not None else 0o755 if item.data is None else 0o644
            )
            if item.target is not None:
                member.type, member.linkname = tarfile.SYMTYPE, item.target
            elif item.hard is not None:
                member.type, member.linkname = tarfile.LNKTYPE, item.hard
            elif item.fifo:
                member.type = tarfile.FIFOTYPE
            elif item.data is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(item.data)
            archive.addfile(member, io.BytesIO(item.data) if item.data is not None else None)
    return out.getvalue()


COMPRESSORS = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "zstd": lambda data: zstandard.ZstdCompressor(level=1).compress(data),
    "": lambda data: data,
}


def make_layout(
    folder: Path,
    layers: Sequence[Files],
    *,
    env: Mapping[str, str] | None = None,
    user: str = USER,
    entrypoint: Sequence[str] = ("/bin/sh",),
    workdir: str = "/",
    compression: Sequence[str] = ("zstd", "gzip"),
    reference: str = "1",
) -> Path:
    """Write an OCI image layout; layers are compressed in turn with the kinds given."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        media_type = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    tars = [make_tar(files) for files in layers]
    kinds = [compression[position % len(compression)] for position in range(len(tars))]
    descriptors = [
        blob(COMPRESSORS[kind](tar), f"layer.v1.tar{'+' * bool(kind)}{kind}")
        for tar, kind in zip(tars, kinds, strict=True)
    ]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": user,
            "Entrypoint": list(entrypoint),
            "Env": [f"{name}={value}" for name, value in (env or {"PATH": "/bin"}).items()],
            "WorkingDir": workdir,
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars],
        },
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": descriptors,
    }
    listed = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    listed["annotations"] = {"org.opencontainers.image.ref.name": reference}
    index = {"schemaVersion": 2, "manifests": [listed]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def make_conda(path: Path, files: Files, *, name: str = "tiny", version: str = "1.0") -> Path:
    """Write a .conda package with the least that a reader needs."""
    index = {
        "name": name,
        "version": version,
        "build": "0",
        "build_number": 0,
        "subdir": "linux-64",
    }
    compressor = zstandard.ZstdCompressor()
    stem = path.name.removesuffix(".conda")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", '{"conda_pkg_format_version": 2}')
        archive.writestr(f"pkg-{stem}.tar.zst", compressor.compress(make_tar(files)))
        info = make_tar({"info/index.json": json.dumps(index)})
        archive.writestr(f"info-{stem}.tar.zst", compressor.compress(info))
    return path
