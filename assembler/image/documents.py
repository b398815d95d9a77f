"""The JSON documents of an image: config, manifest, index entry. Pure.

Sources: OCI image-spec 1.1 (config.md, manifest.md, annotations.md). JSON is written with sorted
keys and no spaces, so that the same image is the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assembler.digest import canonical_json, sha256_bytes

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
OCI = "org.opencontainers.image"
OURS = "io.github.rocm.atom"
REF_NAME = f"{OCI}.ref.name"
BASE_DIGEST = f"{OCI}.base.digest"
CONTAINERD_NAME = "io.containerd.image.name"
KEY = f"{OURS}.assembly-key"
LAYER_NAME = f"{OURS}.layer"
LAYER_PACKAGES = f"{OURS}.packages"
LAYER_TAR_SIZE = f"{OURS}.unpacked-size"
LOCK = f"{OURS}.lock"
GFX = f"{OURS}.gfx-targets"
FORMAT = f"{OURS}.format-version"
COMPRESSION = f"{OURS}.compression"
MAX_LAYERS = f"{OURS}.max-layers"
MAX_LAYER_SIZE = f"{OURS}.max-layer-size"
BOUND = f"{OURS}.source-date-epoch"
PROFILE = f"{OURS}.profile"
# conda platform -> (OCI architecture, Debian architecture)
ARCHITECTURES = {"linux-64": ("amd64", "amd64"), "linux-aarch64": ("arm64", "arm64")}


@dataclass(frozen=True)
class LayerFacts:
    """A layer as the documents tell it."""

    name: str
    digest: str
    size: int
    diff_id: str
    tar_size: int
    packages: tuple[str, ...]
    created: int
    media_type: str | None = None


@dataclass(frozen=True)
class Descriptor:
    """A blob's media type, digest, size, and its bytes."""

    media_type: str
    digest: str
    data: bytes

    @classmethod
    def of(cls, media_type: str, document: Mapping[str, Any]) -> Descriptor:
        """Return the descriptor of a JSON document."""
        data = canonical_json(document)
        return cls(media_type, f"sha256:{sha256_bytes(data)}", data)

    @classmethod
    def raw(cls, media_type: str, data: bytes) -> Descriptor:
        """Return the descriptor of any bytes."""
        return cls(media_type, f"sha256:{sha256_bytes(data)}", data)

    def as_dict(self, **more: Any) -> dict[str, Any]:
        """Return the descriptor as JSON data, with further keys that are not empty."""
        return {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": len(self.data),
            **{key: value for key, value in more.items() if value},
        }


@dataclass(frozen=True)
class Settings:
    """How a container of the image starts, and the labels that tell what it is."""

    architecture: str
    created: str
    user: str
    env: Mapping[str, str]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    workdir: str
    labels: Mapping[str, str]


def config(settings: Settings, layers: Sequence[LayerFacts], times: Sequence[str]) -> Descriptor:
    """Return the image's config; ``times`` are the layers' creation times as RFC 3339 words."""
    start: dict[str, Any] = {
        "User": settings.user,
        "Env": [f"{name}={value}" for name, value in settings.env.items()],
        "Entrypoint": list(settings.entrypoint),
        "WorkingDir": settings.workdir,
        "Labels": dict(settings.labels),
    }
    if settings.cmd:
        start["Cmd"] = list(settings.cmd)
    return Descriptor.of(
        CONFIG,
        {
            "architecture": settings.architecture,
            "os": "linux",
            "created": settings.created,
            "config": start,
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [
                {
                    "created": time,
                    "created_by": f"assembler image: {layer.name}",
                    "comment": _summary(layer.packages),
                }
                for layer, time in zip(layers, times, strict=True)
            ],
        },
    )


def _summary(packages: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(packages[:most])
    return shown if len(packages) <= most else f"{shown} and {len(packages) - most} more"


def manifest(
    image_config: Descriptor,
    layers: Sequence[LayerFacts],
    media_type: str,
    annotations: Mapping[str, str],
) -> Descriptor:
    """Return the image's manifest."""
    return Descriptor.of(
        MANIFEST,
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": image_config.as_dict(),
            "layers": [
                {
                    "mediaType": layer.media_type or media_type,
                    "digest": layer.digest,
                    "size": layer.size,
                    "annotations": {
                        LAYER_NAME: layer.name,
                        LAYER_PACKAGES: " ".join(layer.packages),
                        LAYER_TAR_SIZE: str(layer.tar_size),
                    },
                }
                for layer in layers
            ],
            "annotations": dict(annotations),
        },
    )


def index_entry(
    image_manifest: Descriptor, *, name: str, tag: str, architecture: str, key: str, gfx: str
) -> dict[str, Any]:
    """Return the image's entry in index.json.

    ``ref.name`` is the bare tag: a name with a colon breaks BuildKit's ``oci-layout://``.
    """
    annotations = {
        REF_NAME: tag,
        CONTAINERD_NAME: f"docker.io/library/{name}:{tag}",
        KEY: key,
        GFX: gfx,
    }
    return image_manifest.as_dict(
        annotations={key: value for key, value in annotations.items() if value},
        platform={"architecture": architecture, "os": "linux"},
    )


def index(entries: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the bytes of index.json."""
    return canonical_json(
        {"schemaVersion": 2, "mediaType": INDEX, "manifests": [dict(entry) for entry in entries]}
    )
