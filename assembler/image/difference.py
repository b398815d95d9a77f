"""Where two images differ first: layer, entry and byte, or the setting."""

from __future__ import annotations

import hashlib
import itertools
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, cast

from assembler.digest import CHUNK, chunks
from assembler.image.compression import CORRUPT, LAYER, Codec
from assembler.image.documents import LAYER_NAME
from assembler.image.layout import Layout
from assembler.image.tarstream import Pieces

_FIELDS = ("name", "type", "mode", "uid", "gid", "uname", "gname", "size", "mtime", "linkname")


@dataclass(frozen=True)
class Difference:
    """The first place where two images differ; ``what`` is a clause for people."""

    layer: str | None
    entry: str | None
    byte: int | None
    what: str

    def __str__(self) -> str:
        """Return one line: layer, entry, byte, what."""
        place = [
            f"layer {self.layer}" if self.layer else "",
            self.entry or "",
            f"byte {self.byte}" if self.byte is not None else "",
        ]
        return ", ".join(part for part in place if part) + (": " if any(place) else "") + self.what


def first_difference(
    one: Layout, one_digest: str, two: Layout, two_digest: str
) -> Difference | None:
    """Compare two images down to the bytes that are on disk; None when they are identical.

    Blobs are hashed, not believed: one that was changed on disk is a difference.
    """
    first, second = one.document(one_digest), two.document(two_digest)
    if first is None or second is None:
        return Difference(None, None, None, "a manifest is missing or is no JSON")
    layers = itertools.zip_longest(first["layers"], second["layers"])
    for number, (left, right) in enumerate(layers):
        if left is None or right is None:
            return Difference(None, None, None, f"one image ends after {number} layers")
        name = left.get("annotations", {}).get(LAYER_NAME, str(number))
        if _intact(one, left) and _intact(two, right) and left["digest"] == right["digest"]:
            continue
        return _layer(name, one, left, two, right)
    found = _document("config", _config(one, first), _config(two, second))
    return found or _document("manifest", first, second) or (
        None if one_digest == two_digest
        else Difference(None, None, None, "the manifests are spelled differently")
    )  # fmt: skip


def _intact(layout: Layout, part: Mapping[str, Any]) -> bool:
    try:
        with layout.blob(part["digest"]).open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return False
    return bool(f"sha256:{found}" == part["digest"])


def _config(layout: Layout, manifest: Mapping[str, Any]) -> dict[str, Any]:
    return layout.document(manifest["config"]["digest"]) or {}


def _document(
    name: str, one: Mapping[str, Any], two: Mapping[str, Any], where: str = ""
) -> Difference | None:
    for key in sorted({*one, *two}):
        left, right = one.get(key), two.get(key)
        if left == right:
            continue
        if isinstance(left, dict) and isinstance(right, dict):
            return _document(name, left, right, f"{where}{key}.")
        return Difference(
            None, f"{name} {where}{key}", None, f"{_short(left)} against {_short(right)}"
        )
    return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _open(layout: Layout, part: Mapping[str, Any]) -> Iterator[bytes]:
    codec = Codec(part["mediaType"].removeprefix(f"{LAYER}+"), 1)
    with layout.blob(part["digest"]).open("rb") as stream:
        yield from codec.expand(chunks(stream))


def _members(
    pieces: Iterator[bytes],
) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    with tarfile.open(
        fileobj=cast("IO[bytes]", Pieces(pieces)), mode="r|", errors="surrogateescape"
    ) as archive:
        for info in archive:
            yield info, archive.extractfile(info) if info.isreg() else None


def _layer(
    name: str, one: Layout, left: Mapping[str, Any], two: Layout, right: Mapping[str, Any]
) -> Difference:
    entry = "its first entry"
    try:
        pairs = itertools.zip_longest(_members(_open(one, left)), _members(_open(two, right)))
        for first, second in pairs:
            if first is None or second is None:
                return Difference(name, entry, None, "one of the layers ends after it")
            entry = first[0].name
            found = _member(name, first, second)
            if found is not None:
                return found
    except FileNotFoundError:
        return Difference(name, None, None, "its blob is missing")
    except (*CORRUPT, tarfile.TarError, EOFError) as error:
        return Difference(name, entry, None, f"damaged there or right after it ({error})")
    return Difference(name, None, None, "the same files, compressed differently")


def _member(
    layer: str,
    one: tuple[tarfile.TarInfo, IO[bytes] | None],
    two: tuple[tarfile.TarInfo, IO[bytes] | None],
) -> Difference | None:
    for key in _FIELDS:
        left, right = getattr(one[0], key), getattr(two[0], key)
        if left != right:
            return Difference(
                layer, one[0].name, None, f"{key} is {_short(left)} against {_short(right)}"
            )
    position = 0
    while one[1] is not None and two[1] is not None:
        first, second = one[1].read(CHUNK), two[1].read(CHUNK)
        if first != second:
            at = next(
                number
                for number, (a, b) in enumerate(itertools.zip_longest(first, second))
                if a != b
            )
            return Difference(layer, one[0].name, position + at, "other content from there on")
        if not first:
            break
        position += len(first)
    return None
