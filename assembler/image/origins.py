"""Where the blobs of somebody's image lie when it is no layout: a tar, or a repository.

Both give documents by their digest and blobs as pieces; nobody here checks a blob's digest.
Sources: OCI image-spec 1.1 (image-layout.md), distribution-spec 1.1 (pull).
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import requests

from assembler.digest import CHUNK, chunks, sha256_bytes
from assembler.errors import ImageError
from assembler.image.connection import Connection
from assembler.image.layout import INDEX_FILE

_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
MOST_JSON = 4 << 20  # bytes; what registries allow of a manifest


class Blobs(Protocol):
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


def descriptor(part: Any, name: object) -> dict[str, Any]:
    """Return a descriptor from somebody else's JSON, with the keys that it must have."""
    try:
        if _DIGEST.match(part["digest"]) and isinstance(part["size"], int):
            return {**part, "mediaType": str(part["mediaType"])}
    except (KeyError, TypeError):
        pass
    raise unusable(name, "its manifest is malformed")


def json_of(pieces: Iterable[bytes]) -> dict[str, Any] | None:
    """Return the JSON object that the pieces are, or None."""
    try:
        found = json.loads(b"".join(pieces))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class Archive:
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
            return [descriptor(entry, self.name) for entry in data["manifests"]]
        except (ValueError, KeyError, TypeError):
            raise unusable(self.name, "its index is damaged") from None

    def document(self, digest: str) -> dict[str, Any] | None:
        """Return a JSON blob, or None when it is none."""
        with self.open(digest) as pieces:
            return json_of(pieces)

    @contextmanager
    def open(self, digest: str) -> Iterator[Iterable[bytes]]:
        """Open a blob; ImageError when the archive lacks it or is cut short."""
        info = self._members.get(f"blobs/sha256/{digest.removeprefix('sha256:')}")
        stream = self._tar.extractfile(info) if info else None
        if stream is None:
            raise unusable(self.name, f"the blob {digest[:19]} is missing")
        try:
            yield chunks(stream)
        except (tarfile.TarError, EOFError) as error:
            raise unusable(self.name, f"it is cut short ({error})") from None


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open a tar that is not compressed; ImageError when it is none."""
    try:
        with tarfile.open(path, "r:") as tar:
            yield Archive(path, tar)
    except FileNotFoundError:
        raise unusable(path, "there is no such file") from None
    except (tarfile.TarError, EOFError) as error:
        raise unusable(path, f"it is no plain tar ({error})") from None


class Repository:
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
        return json_of((self.documents.get(digest, b""),))

    @contextmanager
    def open(self, digest: str) -> Iterator[Iterable[bytes]]:
        """Open a blob or a manifest; ImageError when the repository lacks it."""
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
