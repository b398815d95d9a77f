"""Images to registries: what is missing is sent, manifests go as the bytes they are.

Manifests are never parsed and written again, because that would change their digest. Referrers of
an image (SBOM, provenance) go with it; where the registry does not list them itself, the fallback
tag does. Source: OCI distribution-spec 1.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import requests

from assembler.digest import CHUNK, chunks
from assembler.errors import ImageError
from assembler.image.connection import Connection, Reference
from assembler.image.documents import INDEX, REF_NAME, index
from assembler.image.layout import Layout
from assembler.progress import Progress, Task

__all__ = ["Pushed", "Pusher", "Reference"]


@dataclass(frozen=True)
class Pushed:
    """What a push did: references by tag, and how many bytes were sent or already there."""

    references: tuple[str, ...]
    digests: tuple[str, ...]
    sent_blobs: int
    sent_bytes: int
    present_blobs: int

    def as_dict(self) -> dict[str, object]:
        """Return the result as plain data."""
        return asdict(self)


class _Body:
    """A file as a request's body: read anew for every attempt, in constant memory."""

    def __init__(self, path: Path, task: Task) -> None:
        self._path = path
        self._task = task

    def __len__(self) -> int:
        return self._path.stat().st_size

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as stream:
            for chunk in chunks(stream, CHUNK):
                yield chunk
                self._task.advance(len(chunk))


class Pusher:
    """Sends one layout to one repository."""

    def __init__(
        self, layout: Layout, reference: Reference, progress: Progress, *, plain_http: bool = False
    ) -> None:
        self._layout = layout
        self._reference = reference
        self._progress = progress
        if reference.digest is not None:
            raise ImageError(
                f"an image cannot be pushed to the digest {reference.digest[:19]}…",
                remedy="give a tag, or none: the digest follows from the image",
            )
        self._connection = Connection(reference, plain_http=plain_http)

    def push(self, tags: Sequence[str] = ()) -> Pushed:
        """Send every image of the layout and return what was sent.

        A layout with one image gets ``tags`` (default: the reference's, else the image's own);
        several keep their own tags. ImageError when the registry refuses.
        """
        entries = [dict(entry) for entry in self._layout.entries()]
        images = [entry for entry in entries if "platform" in entry]
        if not images or not all(map(self._layout.is_complete, images)):
            raise ImageError(
                f"{self._layout.path} is not a complete OCI image layout",
                remedy="make it with `assembler image`",
            )
        if not all(map(self._layout.is_complete, entries)):
            raise ImageError(
                f"an attestation in {self._layout.path} is not complete",
                remedy="attach all of them anew with `assembler sbom --attach`",
            )
        given = tuple(tags) or ((self._reference.tag,) if self._reference.tag else ())
        if len(images) > 1 and given:
            raise ImageError(
                f"{self._layout.path} holds {len(images)} images, which cannot share a tag",
                remedy="push them without a tag: each keeps its own",
            )
        manifests = [self._layout.document(entry["digest"]) or {} for entry in entries]
        sent, size, present = self._blobs(manifests)
        for entry in [*images, *(entry for entry in entries if "platform" not in entry)]:
            self._manifest(entry["digest"], entry["mediaType"], entry["digest"])
        self._list_referrers(entries, manifests)
        references = []
        for entry in images:
            for tag in given or (entry["annotations"][REF_NAME],):
                self._manifest(entry["digest"], entry["mediaType"], tag)
                references.append(self._reference.at(tag))
        digests = tuple(entry["digest"] for entry in images)
        return Pushed(tuple(references), digests, sent, size, present)

    def _blobs(self, manifests: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
        parts = {
            part["digest"]: part["size"]
            for manifest in manifests
            for part in (manifest["config"], *manifest["layers"])
        }
        missing = {}
        for digest, size in parts.items():
            answer = self._connection.ask("HEAD", f"/blobs/{digest}", expect=(200, 404))
            if answer.status_code == 404:
                missing[digest] = size
        if missing:
            words = f"sending {len(missing)} of {len(parts)} blobs"
            with self._progress.task(words, sum(missing.values()), in_bytes=True) as task:
                for digest in missing:
                    self._blob(digest, task)
        return len(missing), sum(missing.values()), len(parts) - len(missing)

    def _blob(self, digest: str, task: Task) -> None:
        answer = self._connection.ask("POST", "/blobs/uploads/", expect=(202,))
        place = answer.headers["Location"]
        if place.startswith("/"):
            scheme, _, rest = self._connection.base.partition("://")
            place = f"{scheme}://{rest.partition('/')[0]}{place}"
        place += f"{'&' if '?' in place else '?'}digest={digest}"
        body = _Body(self._layout.blob(digest), task)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(body))}
        self._connection.ask("PUT", place, data=body, headers=headers, expect=(201,))

    def _manifest(self, digest: str, media_type: str, reference: str) -> None:
        data = self._layout.blob(digest).read_bytes()
        self._put(data, media_type, reference)

    def _put(self, data: bytes, media_type: str, reference: str) -> requests.Response:
        return self._connection.ask(
            "PUT",
            f"/manifests/{reference}",
            data=data,
            headers={"Content-Type": media_type},
            expect=(201,),
        )

    def _list_referrers(
        self, entries: Sequence[dict[str, Any]], manifests: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write the fallback tag of each subject when the registry has no list of its own."""
        found: dict[str, list[dict[str, Any]]] = {}
        for entry, manifest in zip(entries, manifests, strict=True):
            if "subject" in manifest:
                found.setdefault(manifest["subject"]["digest"], []).append(entry)
        for subject, referrers in found.items():
            answer = self._connection.ask("GET", f"/referrers/{subject}", expect=(200, 404, 405))
            if answer.status_code != 200:
                data = index(referrers)
                self._put(data, INDEX, subject.replace(":", "-"))
