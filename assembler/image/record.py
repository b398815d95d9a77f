"""The records in conda-meta: what is installed, without a word about the machine that did it.

Same keys as py-rattler's and conda's, so that both read them; left out are the package cache's
paths, the link record and requested specs, and the URL is that of a channel named ``channel``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from assembler.digest import canonical_json
from assembler.image.condafile import PackageInfo, PathEntry
from assembler.image.placement import META

CHANNEL_URL = "file:///channel"
HISTORY = f"{META}/history"


@dataclass(frozen=True)
class InstalledPath:
    """A path in the prefix as its record tells it; ``sha256`` is that of the installed content."""

    path: str
    path_type: str
    sha256: str | None
    size: int | None
    source: PathEntry | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of paths_data."""
        entry: dict[str, Any] = {"_path": self.path, "path_type": self.path_type}
        packed = self.source.sha256 if self.source else self.sha256
        if packed:
            entry["sha256"] = packed
        if self.sha256 and self.sha256 != packed:
            entry["sha256_in_prefix"] = self.sha256
        if self.size is not None:
            entry["size_in_bytes"] = self.size
        if self.source and self.source.no_link:
            entry["no_link"] = True
        if self.source and self.source.placeholder:
            entry["prefix_placeholder"] = self.source.placeholder
            entry["file_mode"] = self.source.file_mode
        return entry


def prefix_record(
    info: PackageInfo, paths: Sequence[InstalledPath], locked: Mapping[str, Any]
) -> bytes:
    """Return the bytes of a package's conda-meta record.

    ``locked`` holds sha256, md5 and size of the package file as the lock names them.
    """
    ordered = sorted(paths, key=lambda item: item.path)
    record = {
        **{key: value for key, value in info.index.items() if key != "indexed_timestamp"},
        **{key: value for key, value in locked.items() if value},
        "fn": info.file,
        "channel": CHANNEL_URL,
        "url": f"{CHANNEL_URL}/{info.index['subdir']}/{quote(info.file)}",
        "requested_specs": [],
        "files": [item.path for item in ordered],
        "paths_data": {"paths_version": 1, "paths": [item.as_dict() for item in ordered]},
    }
    return canonical_json(record) + b"\n"
