"""OCI image layouts on disk: blobs first, the index last, so that a reader sees old or new.

A new layout is made beside its place and renamed there. One that exists gets the new blobs first,
then its index.json is replaced by one rename, then blobs that nothing names go.
Source: OCI image-spec 1.1, image-layout.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assembler.errors import ImageError
from assembler.image.cache import SCRATCH, scratch_file
from assembler.image.documents import MANIFEST, Descriptor, index
from assembler.image.stamps import Stamps

MARK = "oci-layout"
VERSION = b'{"imageLayoutVersion":"1.0.0"}'
INDEX_FILE = "index.json"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Layout:
    """An OCI image layout in a folder, which may not exist yet."""

    def __init__(self, path: Path, stamps: Stamps | None = None) -> None:
        """Open the layout at ``path``; with ``stamps``, `has` also looks at the blobs' bytes."""
        self.path = path
        self.stamps = stamps

    @property
    def blobs(self) -> Path:
        """The folder of the blobs, named by their SHA-256."""
        return self.path / "blobs" / "sha256"

    def blob(self, digest: str) -> Path:
        """Return the file of a blob."""
        return self.blobs / digest.removeprefix("sha256:")

    def has(self, digest: str, size: int) -> bool:
        """Tell whether a blob is there with its size, and with its bytes as far as stamps tell."""
        try:
            if self.blob(digest).stat().st_size != size:
                return False
            return self.stamps is None or self.stamps.is_whole(self.blob(digest))
        except OSError:
            return False

    def wrote(self, digest: str) -> None:
        """Remember a blob that was just written, its digest taken from the bytes written."""
        if self.stamps is not None:
            self.stamps.note(self.blob(digest))

    def entries(self) -> tuple[dict[str, Any], ...]:
        """Return the index's entries; none when there is no readable layout."""
        try:
            found = json.loads((self.path / INDEX_FILE).read_bytes())["manifests"]
            entries = tuple(dict(entry) for entry in found)
        except (OSError, ValueError, KeyError, TypeError):
            return ()
        return entries if all(map(_is_descriptor, entries)) else ()

    def document(self, digest: str) -> dict[str, Any] | None:
        """Return a JSON blob, or None when it is missing or no JSON object."""
        try:
            found = json.loads(self.blob(digest).read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def layers(self) -> frozenset[str]:
        """Return the digests of the layers of every image that the index names."""
        return frozenset(
            part["digest"]
            for entry in self.entries()
            if "platform" in entry
            for part in (self.document(entry["digest"]) or {}).get("layers", ())
        )

    def is_complete(self, entry: Mapping[str, Any]) -> bool:
        """Tell whether an entry's manifest and all that it names are there with their sizes."""
        try:
            manifest = self.document(entry["digest"])
            if manifest is None or not self.has(entry["digest"], entry["size"]):
                return False
            parts = [manifest["config"], *manifest["layers"]]
            return all(self.has(part["digest"], part["size"]) for part in parts)
        except (KeyError, TypeError, AttributeError):
            return False

    def referrers(self, subjects: Collection[str]) -> tuple[list[dict[str, Any]], int]:
        """Return the index's entries that refer to these digests, and how many such are damaged."""
        whole, damaged = [], 0
        for entry in self.entries():
            if "platform" in entry:
                continue
            subject = (self.document(entry["digest"]) or {}).get("subject")
            if isinstance(subject, dict) and subject.get("digest") in subjects:
                if self.is_complete(entry):
                    whole.append(entry)
                    continue
            elif subject is not None:
                continue  # of an image that is not there any more
            damaged += 1
        return whole, damaged

    def put(self, document: Descriptor) -> None:
        """Write a document's blob unless it is there with these bytes."""
        try:
            there = self.blob(document.digest).read_bytes() == document.data
        except OSError:
            there = False
        if not there:
            with scratch_file(self.blobs) as (stream, path):
                stream.write(document.data)
                stream.flush()
                path.replace(self.blob(document.digest))
        self.wrote(document.digest)

    def publish(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Make the layout name exactly these manifests, in one rename."""
        mark = self.path / MARK
        if not mark.exists() or mark.read_bytes() != VERSION:
            _write(mark, VERSION)
        _write(self.path / INDEX_FILE, index(entries))

    def leftovers(self) -> list[Path]:
        """Return blobs that no manifest of the index names, and what a killed run left."""
        named = set(self.reachable())
        unnamed = [path for path in self.blobs.iterdir() if f"sha256:{path.name}" not in named]
        return [*unnamed, *self.path.glob(f"{SCRATCH}*")]

    def sweep(self) -> None:
        """Remove the leftovers; only with the layout's guard held."""
        for path in self.leftovers():
            path.unlink(missing_ok=True)

    def reachable(self, entries: Sequence[Mapping[str, Any]] | None = None) -> Iterator[str]:
        """Yield the digest of every blob that the entries (default: the index's) name."""
        chosen = self.entries() if entries is None else entries
        waiting = [(entry["digest"], entry.get("mediaType")) for entry in chosen]
        while waiting:
            digest, media_type = waiting.pop()
            yield digest
            document = (
                self.document(digest) if media_type and media_type.endswith("+json") else None
            )
            if document is None:
                continue
            parts = list(document.get("manifests", ()))
            if media_type == MANIFEST:
                parts += [document["config"], *document["layers"]]
            waiting.extend((part["digest"], part.get("mediaType")) for part in parts)


def _is_descriptor(entry: Mapping[str, Any]) -> bool:
    return (
        isinstance(entry.get("mediaType"), str)
        and isinstance(entry.get("size"), int)
        and isinstance(entry.get("annotations", {}), dict)
        and _DIGEST.fullmatch(str(entry.get("digest"))) is not None
    )


def _write(path: Path, data: bytes) -> None:
    with scratch_file(path.parent) as (stream, scratch):
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
        scratch.replace(path)


@contextmanager
def writing(path: Path, stamps: Stamps | None = None) -> Iterator[Layout]:
    """Open the layout at ``path`` for writing; one that is new appears when the block ends well.

    Raises ImageError when something else is at that place.
    """
    clean_leftovers(path)
    if (path / INDEX_FILE).exists():
        layout = Layout(path, stamps)
        layout.blobs.mkdir(parents=True, exist_ok=True)
        yield layout
        return
    check_place(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.partial-", dir=path.parent))
    try:
        layout = Layout(folder, stamps)
        layout.blobs.mkdir(parents=True)
        yield layout
        folder.chmod(0o755)
        folder.rename(path)
    finally:
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)


def check_place(path: Path) -> None:
    """Raise ImageError when something is at a place that is neither a layout nor empty."""
    if (path / INDEX_FILE).exists():
        return
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ImageError(
            f"{path} exists and is no OCI image layout",
            remedy="remove it or name another place with -o",
        )


def clean_leftovers(path: Path) -> None:
    """Remove what killed runs left beside the layout; only with its guard held."""
    for leftover in path.parent.glob(f".{path.name}.partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
