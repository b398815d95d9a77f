"""One file that every engine loads with our blobs and digest: OCI layout and docker's manifest.

A plain tar of the layout with docker's ``manifest.json`` that points at the same blobs. Docker's
classic store reads manifest.json, containerd and podman the index. Same layout, same bytes.
Source: OCI image-spec 1.1 image-layout.md; moby's image/spec/v1.2 for manifest.json.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from assembler.digest import canonical_json, chunks
from assembler.errors import ImageError
from assembler.image.cache import scratch_file
from assembler.image.documents import CONTAINERD_NAME, MANIFEST, index
from assembler.image.entry import END_OF_ARCHIVE, Entry, header, padding
from assembler.image.layout import INDEX_FILE, MARK, Layout
from assembler.progress import Progress

DOCKER_MANIFEST = "manifest.json"


def write_archive(layout: Layout, sink: IO[bytes], progress: Progress) -> int:
    """Write the layout as one tar and return its size in bytes. ImageError when a blob is gone."""
    entries = whole_images(layout)
    documents = {
        MARK: (layout.path / MARK).read_bytes(),
        # Images alone: engines that load an archive take every manifest of its index for one.
        INDEX_FILE: index(entries),
        DOCKER_MANIFEST: canonical_json([_docker(layout, entry) for entry in entries]),
    }
    blobs = sorted({layout.blob(digest) for digest in layout.reachable(entries)})
    size = 0
    total = sum(path.stat().st_size for path in blobs)
    with progress.task("writing the archive", total, in_bytes=True) as task:

        def put(data: bytes) -> None:
            nonlocal size
            sink.write(data)
            size += len(data)

        for folder in (b"blobs", b"blobs/sha256"):
            put(header(Entry.directory(folder, 0)))
        for path in blobs:
            length = path.stat().st_size
            put(header(Entry.file(f"blobs/sha256/{path.name}".encode(), length, 0)))
            with path.open("rb") as stream:
                for chunk in chunks(stream):
                    put(chunk)
                    task.advance(len(chunk))
            put(padding(length))
        for name, data in sorted(documents.items()):
            put(header(Entry.file(name.encode(), len(data), 0)) + data + padding(len(data)))
        put(END_OF_ARCHIVE)
    return size


def whole_images(layout: Layout) -> list[dict[str, Any]]:
    """Return the entries that are images: those with a platform, not attestations.

    ImageError when there is none, or something that they name is missing or cut short.
    """
    entries = [
        entry
        for entry in layout.entries()
        if entry["mediaType"] == MANIFEST and "platform" in entry
    ]
    marked = (layout.path / MARK).is_file()
    if not marked or not entries or not all(map(layout.is_complete, entries)):
        raise ImageError(
            f"{layout.path} is not a complete OCI image layout",
            remedy="make it with `assembler image`",
        )
    return entries


def _docker(layout: Layout, entry: dict[str, Any]) -> dict[str, Any]:
    manifest = layout.document(entry["digest"]) or {}
    name = entry.get("annotations", {}).get(CONTAINERD_NAME, "")
    return {
        "Config": _blob(manifest["config"]["digest"]),
        "RepoTags": [name.removeprefix("docker.io/library/")] if name else [],
        "Layers": [_blob(layer["digest"]) for layer in manifest["layers"]],
    }


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


@contextmanager
def archive_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` when the block ends well; a pipe or device as it is."""
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        with path.open("wb") as stream:
            yield stream
        return
    with scratch_file(path.parent) as (stream, scratch):
        yield stream
        stream.flush()
        scratch.replace(path)
