"""Where a base image comes from: an OCI layout, an archive of one, or a registry.

What is not a layout already becomes one: the image's blobs, each verified by its digest, in a
folder of the cache (``<cache>/bases``), where they stay until that folder is deleted. From a
registry an image is named by its digest alone: a tag may name another image tomorrow.
Sources: OCI image-spec 1.1 (image-layout.md, image-index.md), distribution-spec 1.1 (pull).
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import requests

from assembler.digest import CHUNK, chunks, sha256_bytes
from assembler.errors import ImageError
from assembler.image.cache import scratch_file
from assembler.image.connection import DOCKER_LIST, DOCKER_MANIFEST, Connection, Reference
from assembler.image.documents import INDEX, MANIFEST, REF_NAME
from assembler.image.layout import INDEX_FILE, Layout
from assembler.image.stamps import Stamps
from assembler.progress import Progress, Task

LAYOUT, ARCHIVE, REGISTRY = "oci:", "oci-archive:", "docker://"
MANIFESTS = (MANIFEST, DOCKER_MANIFEST)
INDEXES = (INDEX, DOCKER_LIST)
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
MOST_JSON = 4 << 20  # bytes; what registries allow of a manifest


@dataclass(frozen=True)
class BaseImage:
    """A base image whose blobs lie in ``layout``; ``digest`` is its manifest's."""

    layout: Layout
    digest: str
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]


class _Blobs(Protocol):
    """Where blobs come from."""

    name: str

    def open(self, digest: str) -> AbstractContextManager[Iterable[bytes]]:
        """Open a blob; ImageError when it is not there."""


def unusable(name: object, words: str) -> ImageError:
    """Return the error for what should be an image and is none, or not the right one."""
    return ImageError(
        f"{name} is not a usable image: {words}",
        remedy="name a complete OCI image layout or archive, such as `skopeo copy ... "
        "oci:FOLDER:TAG` makes, or HOST/NAME@sha256:...",
    )


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
    platforms the one with this OCI ``architecture`` is taken. Raises ImageError.
    """
    kind, place, tag, digest = _split(text)
    if kind == REGISTRY:
        return _from_registry(
            Reference.parse(place), architecture, cache, progress, plain_http=plain_http
        )
    path = Path(place)
    if kind == ARCHIVE:
        with _archive(path) as source:
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
        registry = _Repository(Connection(reference, plain_http=plain_http))
        entry = registry.manifest(reference.digest or reference.tag or "latest")
        entry = _platform(entry, architecture, registry.document, place)
        return _layer_digests(registry.document(entry["digest"]), place)
    if kind == ARCHIVE:
        with _archive(Path(place)) as source:
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
    return frozenset(_descriptor(layer, name)["digest"] for layer in layers)


def _json(pieces: Iterable[bytes]) -> dict[str, Any] | None:
    try:
        found = json.loads(b"".join(pieces))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


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
    return (kind, text, None, None) if kind == REGISTRY else (kind, path, tag, digest or None)


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
            return _descriptor(inner, name)
    raise unusable(name, f"it holds nothing for linux/{architecture}")


def _descriptor(part: Any, name: object) -> dict[str, Any]:
    """Return a descriptor from somebody else's JSON, with the keys that it must have."""
    try:
        if _DIGEST.match(part["digest"]) and isinstance(part["size"], int):
            return {**part, "mediaType": str(part["mediaType"])}
    except (KeyError, TypeError):
        pass
    raise unusable(name, "its manifest is malformed")


def _image(layout: Layout, digest: str, name: object) -> BaseImage:
    manifest = layout.document(digest) or {}
    config = layout.document(_descriptor(manifest.get("config"), name)["digest"]) or {}
    layers = [_descriptor(layer, name) for layer in manifest.get("layers") or ()]
    diff_ids = (config.get("rootfs") or {}).get("diff_ids")
    if not isinstance(diff_ids, list) or len(diff_ids) != len(layers):
        raise unusable(name, "its configuration does not fit its layers")
    return BaseImage(layout, digest, {**manifest, "layers": layers}, config)


def _collect(
    source: _Blobs, entry: dict[str, Any], architecture: str, cache: Path, progress: Progress
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
    _bring(layout, source, _descriptor(manifest.get("config"), source.name)["digest"], None)
    layers = [_descriptor(layer, source.name) for layer in manifest.get("layers") or ()]
    missing = [layer for layer in layers if not layout.has(layer["digest"], layer["size"])]
    if missing:
        words = f"copying {len(missing)} layers of {source.name}"
        total = sum(layer["size"] for layer in missing)
        with progress.task(words, total, in_bytes=True) as task:
            for layer in missing:
                _bring(layout, source, layer["digest"], task)
    layout.stamps.save()
    return _image(layout, entry["digest"], source.name)


def _bring(layout: Layout, source: _Blobs, digest: str, task: Task | None) -> None:
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


class _Archive:
    """A tar of an OCI layout, read where it lies."""

    def __init__(self, path: Path, tar: tarfile.TarFile) -> None:
        self.name = str(path)
        self._tar = tar
        self._members = {info.name.removeprefix("./"): info for info in tar if info.isreg()}

    def index(self) -> list[dict[str, Any]]:
        """Return the index's entries."""
        info = self._members.get(INDEX_FILE)
        if info is None:
            words = "it is no archive of an OCI layout"
            if "manifest.json" in self._members:
                words += "; `skopeo copy docker-archive:FILE oci-archive:FILE` makes one of it"
            raise unusable(self.name, words)
        try:
            stream = self._tar.extractfile(info)
            data = json.loads(stream.read(MOST_JSON) if stream else b"")
            return [_descriptor(entry, self.name) for entry in data["manifests"]]
        except (ValueError, KeyError, TypeError):
            raise unusable(self.name, "its index is damaged") from None

    def document(self, digest: str) -> dict[str, Any] | None:
        """Return a JSON blob, or None when it is none."""
        with self.open(digest) as pieces:
            return _json(pieces)

    @contextmanager
    def open(self, digest: str) -> Iterator[Iterable[bytes]]:
        info = self._members.get(f"blobs/sha256/{digest.removeprefix('sha256:')}")
        stream = self._tar.extractfile(info) if info else None
        if stream is None:
            raise unusable(self.name, f"the blob {digest[:19]} is missing")
        try:
            yield chunks(stream)
        except (tarfile.TarError, EOFError) as error:
            raise unusable(self.name, f"it is cut short ({error})") from None


@contextmanager
def _archive(path: Path) -> Iterator[_Archive]:
    try:
        with tarfile.open(path, "r:") as tar:
            yield _Archive(path, tar)
    except FileNotFoundError:
        raise unusable(path, "there is no such file") from None
    except (tarfile.TarError, EOFError) as error:
        raise unusable(path, f"it is no plain tar ({error})") from None


class _Repository:
    """An image of a registry: documents by one address, layers by another."""

    def __init__(self, connection: Connection) -> None:
        self.name = f"{connection.reference.host}/{connection.reference.name}"
        self._connection = connection
        self.documents: dict[str, bytes] = {}

    def manifest(self, reference: str) -> dict[str, Any]:
        """Ask for a manifest or index and return its descriptor; its bytes are kept."""
        answer = self._connection.ask("GET", f"/manifests/{reference}", expect=(200, 404))
        if answer.status_code == 404:
            raise unusable(self.name, f"the registry has no {reference[:19]} of it")
        data = answer.content
        digest = f"sha256:{sha256_bytes(data)}"
        self.documents[digest] = data
        media_type = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def document(self, digest: str) -> dict[str, Any] | None:
        """Return a manifest or index, or None when it is no JSON."""
        if digest not in self.documents:
            self.manifest(digest)
        return _json((self.documents.get(digest, b""),))

    @contextmanager
    def open(self, digest: str) -> Iterator[Iterable[bytes]]:
        if digest in self.documents:
            yield (self.documents[digest],)
            return
        answer = self._connection.ask("GET", f"/blobs/{digest}", expect=(200, 404), stream=True)
        with answer:
            if answer.status_code == 404:
                # What an index lists lies where manifests do.
                self.manifest(digest)
                yield (self.documents.get(digest, b""),)
                return
            try:
                yield cast("Iterator[bytes]", answer.iter_content(CHUNK))
            except requests.RequestException as error:
                raise self._connection.unreachable(error) from None


def _from_registry(
    reference: Reference, architecture: str, cache: Path, progress: Progress, *, plain_http: bool
) -> BaseImage:
    connection = Connection(reference, plain_http=plain_http)
    source = _Repository(connection)
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
