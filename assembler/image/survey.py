"""Finding a base image and looking through its layers, before a byte of ours is written.

Blobs are whole, the C library is new enough to be named, and symbolic links are known, below which
no prefix may lie.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from assembler.digest import chunks
from assembler.errors import ImageError
from assembler.image.bases import open_base
from assembler.image.cache import scratch_file
from assembler.image.compression import CORRUPT, LAYER, Codec
from assembler.image.entry import WHITEOUT
from assembler.image.foreign import ForeignBase, media_type
from assembler.image.layout import Layout
from assembler.image.origins import unusable
from assembler.image.tarstream import Pieces
from assembler.progress import Progress

_LIBC = re.compile(r"(?:^|/)lib(?:64|/[a-z0-9_]+-linux-gnu)?/(?:libc\.so\.6|libc-[0-9.]+\.so)$")
_VERSION = re.compile(rb"GNU C Library [^\n]*?version ([0-9]+\.[0-9]+)")


def read_base(
    reference: str,
    architecture: str,
    cache: Path,
    progress: Progress,
    *,
    plain_http: bool = False,
) -> ForeignBase:
    """Open the base image that ``reference`` names (see bases.py) and look through its layers.

    What was found in a layer is kept in the cache, so that it is read once. Raises ImageError for
    an image that is damaged, for another platform, or without a C library.
    """
    base = open_base(reference, architecture, cache, progress, plain_http=plain_http)
    config = base.config
    if config.get("architecture") != architecture or config.get("os") != "linux":
        raise unusable(reference, f"it is for {config.get('os')}/{config.get('architecture')}")
    links: set[str] = set()
    glibc: str | None = None
    sizes = []
    for layer, diff_id in zip(base.manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        facts = _facts(base.layout, layer, diff_id, cache)
        links = {link for link in links if link not in facts.gone} | set(facts.links)
        sizes.append(facts.size)
        glibc = facts.glibc or glibc
    if glibc is None:
        raise ImageError(
            f"{reference} cannot be a base: none of its layers holds glibc, or its version does "
            "not show",
            remedy="choose a base with glibc, such as Debian, Ubuntu, UBI or distroless/base",
        )
    words = (config.get("config") or {}).get("Env") or ()
    env = tuple((word.partition("=")[0], word.partition("=")[2]) for word in words)
    return ForeignBase(
        base.layout.path,
        base.digest,
        tuple(base.manifest["layers"]),
        tuple(config["rootfs"]["diff_ids"]),
        env,
        frozenset(links),
        glibc,
        tuple(sizes),
    )


def _uncompressed(layout: Layout, layer: Mapping[str, Any]) -> Iterator[bytes]:
    name = media_type(layer).removeprefix(LAYER).removeprefix("+")
    digest = hashlib.sha256()

    def raw() -> Iterator[bytes]:
        with layout.blob(layer["digest"]).open("rb") as stream:
            for chunk in chunks(stream):
                digest.update(chunk)
                yield chunk

    if name not in ("", "gzip", "zstd"):
        raise unusable(layout.path, f"a layer is {layer['mediaType']}")
    yield from Codec(name, 1).expand(raw()) if name else raw()
    if f"sha256:{digest.hexdigest()}" != layer["digest"]:
        raise unusable(layout.path, f"the layer {layer['digest'][:19]} is damaged")


class LayerFacts(BaseModel):
    """What one layer holds that matters above it.

    ``links`` are its symbolic links, ``gone`` the paths at which it has something else, ``size``
    its uncompressed bytes, ``glibc`` the C library's version when it is in this layer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    diff_id: str
    size: int
    glibc: str | None
    links: tuple[str, ...]
    gone: tuple[str, ...]


def _facts(layout: Layout, layer: Mapping[str, Any], diff_id: str, cache: Path) -> LayerFacts:
    """Return a layer's facts: the kept ones (the blob's bytes were checked), else by reading it."""
    place = cache / "bases" / "facts" / f"{layer['digest'].removeprefix('sha256:')}.json"
    try:
        kept = LayerFacts.model_validate_json(place.read_bytes())
    except (OSError, ValidationError):
        kept = None
    if kept is not None and kept.diff_id == diff_id:
        return kept
    facts = _scan(layout, layer, diff_id)
    with scratch_file(place.parent) as (stream, path):
        stream.write(facts.model_dump_json().encode())
        stream.flush()
        path.replace(place)
    return facts


def _scan(layout: Layout, layer: Mapping[str, Any], diff_id: str) -> LayerFacts:
    """Read a layer once: its size, the C library's version, and its symbolic links."""
    digest, size, glibc = hashlib.sha256(), 0, None
    links: set[str] = set()
    gone: set[str] = set()

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
                elif _is_libc(info, name):
                    content = archive.extractfile(info)
                    found = _VERSION.search(content.read() if content else b"")
                    glibc = found[1].decode() if found else glibc
                folder, slash, last = name.rpartition("/")
                if not info.issym():
                    gone.add(folder + slash + last.removeprefix(WHITEOUT.decode()))
                archive.members = []  # type: ignore[attr-defined]
        for _ in pieces:  # what follows the end of the archive belongs to the digest
            pass
    except (*CORRUPT, tarfile.TarError, EOFError) as error:
        raise unusable(layout.path, f"a layer is damaged ({error})") from None
    if f"sha256:{digest.hexdigest()}" != diff_id:
        words = f"the layer {layer['digest'][:19]} is not the one its config names"
        raise unusable(layout.path, words)
    return LayerFacts(
        diff_id=diff_id,
        size=size,
        glibc=glibc,
        links=tuple(sorted(links)),
        gone=tuple(sorted(gone)),
    )


def _is_libc(info: tarfile.TarInfo, name: str) -> bool:
    return info.isreg() and _LIBC.search(name) is not None
