"""Somebody else's base: the layers of an OCI image, below ours, as they are.

Its variables hold unless ours replace them; its PATH comes after ours. `survey.py` finds one and
looks through it before a byte is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assembler.errors import ImageError
from assembler.image.compression import LAYER

# Docker's names for the same layers.
_DOCKER = "application/vnd.docker.image.rootfs.diff.tar"


@dataclass(frozen=True)
class ForeignBase:
    """An image that ours is put upon, its blobs in a layout; ``glibc`` is its version of that."""

    layout: Path
    digest: str
    layers: tuple[Mapping[str, Any], ...]
    diff_ids: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    links: frozenset[str]
    glibc: str
    sizes: tuple[int, ...]

    def check(self, prefix: str) -> None:
        """Raise ImageError when a file of the prefix would replace one of the base's links."""
        parts = prefix.strip("/").split("/")
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            if path in self.links:
                raise ImageError(
                    f"the prefix {prefix} lies below /{path}, a symbolic link of the base image",
                    remedy="choose another prefix in stack.toml",
                )


def media_type(layer: Mapping[str, Any]) -> str:
    """Return a layer's media type in OCI's spelling."""
    return str(layer["mediaType"]).replace(_DOCKER, LAYER).replace(".gzip", "+gzip")
