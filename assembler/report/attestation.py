"""SBOMs and provenance beside their image: referrers in the layout, which travel with it.

Source: OCI image-spec 1.1, manifests with ``subject`` and ``artifactType``; the guidance for
artifacts without a config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assembler.channel.guard import exclusive
from assembler.image.documents import MANIFEST, OCI, Descriptor
from assembler.image.layout import Layout
from assembler.progress import Progress

EMPTY = Descriptor.of("application/vnd.oci.empty.v1+json", {})


@dataclass(frozen=True)
class Attestation:
    """A document about an image: its media type, its file name and its bytes."""

    media_type: str
    title: str
    data: bytes


def referrer(attestation: Attestation, subject: Mapping[str, Any], created: str) -> Descriptor:
    """Return the manifest of a document that refers to an image's index entry."""
    blob = Descriptor.raw(attestation.media_type, attestation.data)
    return Descriptor.of(
        MANIFEST,
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": attestation.media_type,
            "config": EMPTY.as_dict(),
            "layers": [blob.as_dict(annotations={f"{OCI}.title": attestation.title})],
            "subject": {key: subject[key] for key in ("mediaType", "digest", "size")},
            "annotations": {f"{OCI}.created": created},
        },
    )


def attach(
    layout: Layout,
    documents: Mapping[str, Sequence[Attestation]],
    created: str,
    progress: Progress,
) -> tuple[str, ...]:
    """Put documents beside the images they speak of, by image digest; return the new digests.

    What referred to an image before is replaced. The images themselves are not touched.
    """
    with exclusive(layout.path.absolute(), progress):
        images = [entry for entry in layout.entries() if "platform" in entry]
        kept = [
            entry
            for entry in layout.entries()
            if "platform" not in entry
            and _subject(layout, entry) not in documents
            and _subject(layout, entry) in {image["digest"] for image in images}
        ]
        added = []
        for image in images:
            for attestation in documents.get(image["digest"], ()):
                manifest = referrer(attestation, image, created)
                for part in (
                    EMPTY, Descriptor.raw(attestation.media_type, attestation.data), manifest,
                ):  # fmt: skip
                    layout.put(part)
                added.append(manifest.as_dict(artifactType=attestation.media_type))
        layout.publish([*images, *kept, *added])
        layout.sweep()
    return tuple(entry["digest"] for entry in added)


def _subject(layout: Layout, entry: Mapping[str, Any]) -> str:
    manifest = layout.document(entry["digest"]) or {}
    return str(manifest.get("subject", {}).get("digest", ""))
