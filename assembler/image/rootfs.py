"""An image's file system as one flat tar: for chroots, bubblewrap, and builders that copy a root.

Layers hold every path once, directories aside, so the union needs no memory of contents: a
directory is written when it first comes. Same image, same bytes.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from typing import IO, Any, cast

from assembler.digest import chunks
from assembler.errors import ImageError
from assembler.image.compression import LAYER, Codec
from assembler.image.entry import END_OF_ARCHIVE, Entry, Kind, header, padding
from assembler.image.layout import Layout
from assembler.image.tarstream import Pieces
from assembler.progress import Progress

_KINDS = {
    tarfile.REGTYPE: Kind.FILE,
    tarfile.LNKTYPE: Kind.HARDLINK,
    tarfile.SYMTYPE: Kind.SYMLINK,
    tarfile.DIRTYPE: Kind.DIRECTORY,
}


def write_rootfs(
    layout: Layout, entry: Mapping[str, Any], sink: IO[bytes], progress: Progress
) -> None:
    """Write the union of an image's layers; ImageError when a blob is gone."""
    manifest = layout.document(entry["digest"])
    if manifest is None or not layout.is_complete(entry):
        raise ImageError(
            f"{layout.path} is not a complete OCI image layout",
            remedy="make it with `assembler image`",
        )
    seen: set[bytes] = set()
    total = sum(layer["size"] for layer in manifest["layers"])
    with progress.task("writing the file system", total, in_bytes=True) as task:
        for layer in manifest["layers"]:
            codec = Codec(layer["mediaType"].removeprefix(f"{LAYER}+"), 1)
            with layout.blob(layer["digest"]).open("rb") as blob:
                pieces = cast("IO[bytes]", Pieces(codec.expand(chunks(blob))))
                with tarfile.open(fileobj=pieces, mode="r|", errors="surrogateescape") as archive:
                    for info in archive:
                        _copy(archive, info, seen, sink)
            task.advance(layer["size"])
    sink.write(END_OF_ARCHIVE)


def _copy(
    archive: tarfile.TarFile, info: tarfile.TarInfo, seen: set[bytes], sink: IO[bytes]
) -> None:
    path = info.name.encode("utf-8", "surrogateescape")
    kind = _KINDS[info.type]
    if path in seen:
        if kind is Kind.DIRECTORY:
            return
        raise ImageError(
            f"two layers hold {info.name}", remedy="assemble the image again with this assembler"
        )
    seen.add(path)
    target = info.linkname.encode("utf-8", "surrogateescape")
    size = info.size if kind is Kind.FILE else 0
    mtime = int(info.mtime)
    made = Entry(path, kind, info.mode, mtime, size, target, info.uid, info.gid)
    sink.write(header(made))
    content = archive.extractfile(info) if kind is Kind.FILE else None
    if content is not None:
        for chunk in chunks(content):
            sink.write(chunk)
        sink.write(padding(size))
