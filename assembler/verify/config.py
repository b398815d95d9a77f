"""How an image starts: the parts of an OCI image configuration that gates use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ImageConfig:
    """How an image starts: the parts of the OCI image configuration that gates use."""

    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    workdir: str = "/"
    labels: Mapping[str, str] = field(default_factory=dict)
    layer_sizes: tuple[int, ...] = ()
    """Compressed size of each layer in bytes."""

    @property
    def ids(self) -> tuple[int, int] | None:
        """The numeric user and group, or None when the user is named by a word or not at all."""
        user, _, group = self.user.partition(":")
        if not user.isdigit() or (group and not group.isdigit()):
            return None
        return int(user), int(group or user)
