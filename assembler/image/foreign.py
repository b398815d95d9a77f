"""Somebody else's base: the layers of an OCI image, below ours, as they are.

Checked before a byte is written: blobs are whole, the C library is new enough for the packages, and
the prefix does not lie below one of the base's symbolic links. Its variables hold unless ours
replace them; its PATH comes after ours.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from assembler.digest import chunks
from assembler.errors import ImageError
from assembler.image.compression import CORRUPT, LAYER, Codec
from assembler.image.documents import REF_NAME
from assembler.image.layout import Layout
from assembler.image.tarstream import Pieces

_LIBC = re.compile(r"(?:^|/)lib(?:64|/[a-z0-9_]+-linux-gnu)?/(?:libc\.so\.6|libc-[0-9.]+\.so)$")
_VERSION = re.compile(rb"GNU C Library [^\n]*?version ([0-9]+\.[0-9]+)")
# Docker's names for the same layers.
_DOCKER = "application/vnd.docker.image.rootfs.diff.tar"


@dataclass(frozen=True)
class ForeignBase:
    """An image in an OCI layout that ours is put upon; ``glibc`` is None when it has none."""

    layout: Path
    digest: str
    layers: tuple[Mapping[str, Any], ...]
    diff_ids: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    links: frozenset[str]
    glibc: str | None
    sizes: tuple[int, ...]

    def check(self, prefix: str) -> None:
        """Raise ImageError when a file of the prefix would replace one of the base's links."""
        parts = prefix.strip("/").split("/")
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            if path in self.links:
                raise ImageError(
                    f"the prefix {prefix} lies below /{path}, a symbolic link of the base image",
                    remedy="choose another prefix in stack.toml",
                )


def _fail(layout: Layout, words: str) -> ImageError:
    return ImageError(
        f"{layout.path} cannot be a base: {words}",
        remedy="name a complete OCI image layout, such as `skopeo copy ... oci:FOLDER:TAG` makes",
    )


def read_base(reference: str, architecture: str) -> ForeignBase:
    """Read ``FOLDER[:TAG]`` or ``FOLDER@DIGEST`` and check it down to its layers' bytes."""
    path, tag, digest = _split(reference)
    layout = Layout(path)
    entries = [
        entry
        for entry in layout.entries()
        if (digest is None or entry["digest"] == digest)
        and (tag is None or entry.get("annotations", {}).get(REF_NAME) == tag)
    ]
    if len(entries) != 1 or not layout.is_complete(entries[0]):
        raise _fail(layout, f"{len(entries)} of its images fit" if len(entries) != 1 else "damaged")
    manifest = layout.document(entries[0]["digest"]) or {}
    config = layout.document(manifest["config"]["digest"]) or {}
    if config.get("architecture") != architecture or config.get("os") != "linux":
        raise _fail(layout, f"it is for {config.get('os')}/{config.get('architecture')}")
    links: set[str] = set()
    glibc: str | None = None
    sizes = []
    for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        size, found = _scan(layout, layer, diff_id, links)
        sizes.append(size)
        glibc = found or glibc
    env = tuple(tuple(word.split("=", 1)) for word in config.get("config", {}).get("Env") or ())
    return ForeignBase(
        layout.path,
        entries[0]["digest"],
        tuple(manifest["layers"]),
        tuple(config["rootfs"]["diff_ids"]),
        cast("tuple[tuple[str, str], ...]", env),
        frozenset(links),
        glibc,
        tuple(sizes),
    )


def _split(reference: str) -> tuple[Path, str | None, str | None]:
    reference = reference.removeprefix("oci:")
    path, at, digest = reference.partition("@")
    if at:
        return Path(path), None, digest
    path, colon, tag = reference.rpartition(":")
    return (Path(path), tag, None) if colon and "/" not in tag else (Path(reference), None, None)


def media_type(layer: Mapping[str, Any]) -> str:
    """Return a layer's media type in OCI's spelling."""
    return str(layer["mediaType"]).replace(_DOCKER, LAYER).replace(".gzip", "+gzip")


def _uncompressed(layout: Layout, layer: Mapping[str, Any]) -> Iterator[bytes]:
    name = media_type(layer).removeprefix(LAYER).removeprefix("+")
    digest = hashlib.sha256()

    def raw() -> Iterator[bytes]:
        with layout.blob(layer["digest"]).open("rb") as stream:
            for chunk in chunks(stream):
                digest.update(chunk)
                yield chunk

    if name not in ("", "gzip", "zstd"):
        raise _fail(layout, f"a layer is {layer['mediaType']}")
    yield from Codec(name, 1).expand(raw()) if name else raw()
    if f"sha256:{digest.hexdigest()}" != layer["digest"]:
        raise _fail(layout, f"the layer {layer['digest'][:19]} is damaged")


def _scan(
    layout: Layout, layer: Mapping[str, Any], diff_id: str, links: set[str]
) -> tuple[int, str | None]:
    """Read a layer once: its size, the C library's version, and its symbolic links."""
    digest, size, glibc = hashlib.sha256(), 0, None

    def counted() -> Iterator[bytes]:
        nonlocal size
        for chunk in _uncompressed(layout, layer):
            digest.update(chunk)
            size += len(chunk)
            yield chunk

    pieces = counted()
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", Pieces(pieces)), mode="r|") as archive:
            for info in archive:
                name = info.name.removeprefix("./").strip("/")
                links.discard(name)
                if info.issym():
                    links.add(name)
                elif info.isreg() and _LIBC.search(name):
                    content = archive.extractfile(info)
                    found = _VERSION.search(content.read() if content else b"")
                    glibc = found[1].decode() if found else glibc
        for _ in pieces:  # what follows the end of the archive belongs to the digest
            pass
    except (*CORRUPT, tarfile.TarError, EOFError) as error:
        raise _fail(layout, f"a layer is damaged ({error})") from None
    if f"sha256:{digest.hexdigest()}" != diff_id:
        raise _fail(layout, f"the layer {layer['digest'][:19]} is not the one its config names")
    return size, glibc
