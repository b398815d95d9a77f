"""Where a base image comes from: an OCI layout, an archive of one, or a registry.

What is not a layout already becomes one: the image's blobs, each verified by its digest, in a
folder of the cache (``<cache>/bases``), where they stay until that folder is deleted. From a
registry an image is named by its digest alone: a tag may name another image tomorrow.
Sources: OCI image-spec 1.1 (image-layout.md, image-index.md), distribution-spec 1.1 (pull).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assembler.digest import sha256_bytes
from assembler.errors import ConfigError, ImageError
from assembler.image.cache import scratch_file
from assembler.image.connection import DOCKER_LIST, DOCKER_MANIFEST, Connection, Reference
from assembler.image.documents import INDEX, MANIFEST, REF_NAME
from assembler.image.layout import Layout
from assembler.image.origins import (
    MOST_JSON,
    Blobs,
    Repository,
    descriptor,
    open_archive,
    unusable,
)
from assembler.image.stamps import Stamps
from assembler.progress import Progress, Task

LAYOUT, ARCHIVE, REGISTRY = "oci:", "oci-archive:", "docker://"
MANIFESTS = (MANIFEST, DOCKER_MANIFEST)
INDEXES = (INDEX, DOCKER_LIST)


@dataclass(frozen=True)
class BaseImage:
    """A base image whose blobs lie in ``layout``; ``digest`` is its manifest's."""

    layout: Layout
    digest: str
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]


def open_base(
    text: str,
    architecture: str,
    cache: Path,
    progress: Progress,
    *,
    plain_http: bool = False,
) -> BaseImage:
    """Return the base image that ``text`` names, with all of its blobs in a layout.

    ``text`` is a folder or a tar with ``:TAG`` or ``@DIGEST`` where it holds several images, or
    HOST/NAME@DIGEST; ``oci:``, ``oci-archive:`` and ``docker://`` before it say which. Of several
    platforms the one with this OCI ``architecture`` is taken. Raises ImageError, and ConfigError
    when nothing is at the path.
    """
    kind, place, tag, digest = _split(text)
    if kind == REGISTRY:
        return _from_registry(
            Reference.parse(place), architecture, cache, progress, plain_http=plain_http
        )
    path = Path(place)
    if kind == ARCHIVE:
        with open_archive(path) as source:
            entry = _choose(source.index(), tag, digest, path)
            return _collect(source, entry, architecture, cache, progress)
    layout = Layout(path, Stamps.of(path, cache))
    entry = _choose(layout.entries(), tag, digest, path)
    entry = _platform(entry, architecture, layout.document, path)
    if not layout.is_complete(entry):
        raise unusable(path, "damaged, or not complete")
    found = _image(layout, entry["digest"], path)
    assert layout.stamps is not None
    layout.stamps.save()
    return found


def held_layers(text: str, architecture: str, *, plain_http: bool = False) -> frozenset[str]:
    """Return the layers' digests of the image that ``text`` names; no layer is read.

    ``text`` is as for `open_base`, but a registry's image may be named by a tag. Raises ImageError.
    """
    kind, place, tag, digest = _split(text)
    if kind == REGISTRY:
        reference = Reference.parse(place)
        registry = Repository(Connection(reference, plain_http=plain_http))
        entry = registry.manifest(reference.digest or reference.tag or "latest")
        entry = _platform(entry, architecture, registry.document, place)
        return _layer_digests(registry.document(entry["digest"]), place)
    if kind == ARCHIVE:
        with open_archive(Path(place)) as source:
            entry = _choose(source.index(), tag, digest, Path(place))
            entry = _platform(entry, architecture, source.document, place)
            return _layer_digests(source.document(entry["digest"]), place)
    layout = Layout(Path(place))
    entry = _choose(layout.entries(), tag, digest, Path(place))
    entry = _platform(entry, architecture, layout.document, place)
    return _layer_digests(layout.document(entry["digest"]), place)


def _layer_digests(manifest: Mapping[str, Any] | None, name: object) -> frozenset[str]:
    if manifest is None:
        raise unusable(name, "its manifest is missing or damaged")
    layers = manifest.get("layers") or ()
    return frozenset(descriptor(layer, name)["digest"] for layer in layers)


def _split(text: str) -> tuple[str, str, str | None, str | None]:
    """Return (kind, place, tag, digest); the place of a registry's image is all of it."""
    kind = next((kind for kind in (LAYOUT, ARCHIVE, REGISTRY) if text.startswith(kind)), "")
    text = text.removeprefix(kind)
    path, at, digest = text.partition("@")
    tag: str | None = None
    if not at:
        head, colon, tail = text.rpartition(":")
        if colon and "/" not in tail and not Path(text).exists():
            path, tag = head, tail
    if not kind:
        here = Path(path)
        if here.is_dir():
            kind = LAYOUT
        elif here.exists() or path.endswith(".tar"):
            kind = ARCHIVE
        else:
            kind = REGISTRY if _names_registry(text) else LAYOUT
    if kind == REGISTRY:
        return kind, text, None, None
    if not Path(path).exists():
        raise ConfigError(
            f"there is no image at {path}",
            remedy="name an OCI layout, an archive of one, or HOST/NAME@sha256:...",
        )
    return kind, path, tag, digest or None


def _names_registry(text: str) -> bool:
    try:
        Reference.parse(text)
    except ImageError:
        return False
    return not text.startswith(".")


def _choose(
    entries: Iterable[Mapping[str, Any]], tag: str | None, digest: str | None, path: Path
) -> dict[str, Any]:
    """Return the one entry with that tag or digest; attestations are no images."""
    fitting = [
        dict(entry)
        for entry in entries
        if "artifactType" not in entry
        and (digest is None or entry["digest"] == digest)
        and (tag is None or entry.get("annotations", {}).get(REF_NAME) == tag)
    ]
    if len(fitting) != 1:
        raise unusable(path, f"{len(fitting)} of its images fit")
    return fitting[0]


def _platform(
    entry: dict[str, Any],
    architecture: str,
    document: Callable[[str], dict[str, Any] | None],
    name: object,
) -> dict[str, Any]:
    """Return the manifest's entry for a platform: that of an index, or the entry itself."""
    if entry["mediaType"] in MANIFESTS:
        return entry
    if entry["mediaType"] not in INDEXES:
        raise unusable(name, f"it is {entry['mediaType']}")
    listed = (document(entry["digest"]) or {}).get("manifests") or ()
    for inner in listed:
        platform = inner.get("platform") or {}
        if (platform.get("os"), platform.get("architecture")) == ("linux", architecture):
            return descriptor(inner, name)
    raise unusable(name, f"it holds nothing for linux/{architecture}")


def _image(layout: Layout, digest: str, name: object) -> BaseImage:
    manifest = layout.document(digest) or {}
    config = layout.document(descriptor(manifest.get("config"), name)["digest"]) or {}
    layers = [descriptor(layer, name) for layer in manifest.get("layers") or ()]
    diff_ids = (config.get("rootfs") or {}).get("diff_ids")
    if not isinstance(diff_ids, list) or len(diff_ids) != len(layers):
        raise unusable(name, "its configuration does not fit its layers")
    return BaseImage(layout, digest, {**manifest, "layers": layers}, config)


def _collect(
    source: Blobs, entry: dict[str, Any], architecture: str, cache: Path, progress: Progress
) -> BaseImage:
    """Bring an image's blobs into the cache, as far as they are not there whole already."""
    folder = cache.absolute() / "bases"
    layout = Layout(folder, Stamps.of(folder, cache))
    assert layout.stamps is not None

    def document(digest: str) -> dict[str, Any] | None:
        _bring(layout, source, digest, None)
        return layout.document(digest)

    entry = _platform(entry, architecture, document, source.name)
    manifest = document(entry["digest"]) or {}
    _bring(layout, source, descriptor(manifest.get("config"), source.name)["digest"], None)
    layers = [descriptor(layer, source.name) for layer in manifest.get("layers") or ()]
    missing = [layer for layer in layers if not layout.has(layer["digest"], layer["size"])]
    if missing:
        words = f"copying {len(missing)} layers of {source.name}"
        total = sum(layer["size"] for layer in missing)
        with progress.task(words, total, in_bytes=True) as task:
            for layer in missing:
                _bring(layout, source, layer["digest"], task)
    layout.stamps.save()
    return _image(layout, entry["digest"], source.name)


def _bring(layout: Layout, source: Blobs, digest: str, task: Task | None) -> None:
    """Copy one blob unless it is there whole; what is a document (no task) stays small."""
    target = layout.blob(digest)
    try:
        if layout.has(digest, target.stat().st_size):
            return
    except OSError:
        pass
    found, size = hashlib.sha256(), 0
    with scratch_file(layout.blobs) as (stream, path):
        with source.open(digest) as pieces:
            for piece in pieces:
                found.update(piece)
                size += len(piece)
                if task is None and size > MOST_JSON:
                    raise unusable(source.name, "a document of it is larger than any")
                stream.write(piece)
                if task is not None:
                    task.advance(len(piece))
        stream.flush()
        if f"sha256:{found.hexdigest()}" != digest:
            raise unusable(source.name, f"the blob {digest[:19]} is damaged")
        path.replace(target)
    layout.wrote(digest)


def _from_registry(
    reference: Reference, architecture: str, cache: Path, progress: Progress, *, plain_http: bool
) -> BaseImage:
    connection = Connection(reference, plain_http=plain_http)
    source = Repository(connection)
    if reference.digest is None:
        tag = reference.tag or "latest"
        digest = source.manifest(tag)["digest"]
        raise ImageError(
            f"{reference.at(tag)} is a tag, which may name another image tomorrow",
            remedy=f"write the digest that it names now: {reference.at(digest)}",
        )
    kept = cache.absolute() / "bases" / "blobs" / "sha256" / reference.digest[7:]
    entry = _kept_entry(kept, reference.digest) or source.manifest(reference.digest)
    if entry["digest"] != reference.digest:
        raise unusable(source.name, f"the registry sends other bytes for {reference.digest[:19]}")
    return _collect(source, entry, architecture, cache, progress)


def _kept_entry(path: Path, digest: str) -> dict[str, Any] | None:
    """Return the descriptor of a manifest that was fetched before; its bytes are checked later."""
    try:
        data = path.read_bytes()
        media_type = json.loads(data)["mediaType"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if f"sha256:{sha256_bytes(data)}" != digest:
        return None
    return {"mediaType": media_type, "digest": digest, "size": len(data)}
