"""What finished blobs looked like on disk, so that one that changed is read again.

A stamp is a file's size, times and inode, taken when its bytes were known to be those of its
digest. While the stamp fits, the blob counts as whole without being read; else it is hashed. Stamps
lie in the cache, one JSON file for each layout (``<cache>/stamps/<key>.json``), and may be deleted
at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection
from pathlib import Path

from assembler.digest import sha256_bytes, sha256_file
from assembler.image.cache import scratch_file

Stamp = tuple[int, int, int, int]
"""Size in bytes, times of the last change of content and of inode in ns, inode."""


class Stamps:
    """The stamps of one layout's blobs, by digest without its algorithm."""

    def __init__(self, file: Path) -> None:
        """Read the stamps in ``file``; none when there is no such file or it is damaged."""
        self._file = file
        self._changed = False
        self._known: dict[str, Stamp] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            for name, (size, mtime, ctime, inode) in json.loads(file.read_bytes()).items():
                self._known[name] = (size, mtime, ctime, inode)

    @classmethod
    def of(cls, layout: Path, cache: Path) -> Stamps:
        """Return the stamps that a cache holds for a layout."""
        key = sha256_bytes(os.fsencode(layout.absolute()))[:32]
        return cls(cache.absolute() / "stamps" / f"{key}.json")

    def is_whole(self, blob: Path) -> bool:
        """Tell whether a blob has the bytes of its name; OSError when it cannot be read."""
        stamp = _stamp(blob)
        if self._known.get(blob.name) == stamp:
            return True
        if sha256_file(blob) != blob.name:
            self._changed |= self._known.pop(blob.name, None) is not None
            return False
        self._keep(blob.name, stamp)
        return True

    def note(self, blob: Path) -> None:
        """Stamp a blob whose bytes are known to be those of its name."""
        self._keep(blob.name, _stamp(blob))

    def _keep(self, name: str, stamp: Stamp) -> None:
        self._changed |= self._known.get(name) != stamp
        self._known[name] = stamp

    def save(self, only: Collection[str] | None = None) -> None:
        """Write the stamps when some are new, of these digests alone if given.

        A cache that cannot be written is no trouble: the blobs are hashed again next time.
        """
        if only is not None:
            gone = [name for name in self._known if f"sha256:{name}" not in only]
            for name in gone:
                del self._known[name]
            self._changed |= bool(gone)
        if not self._changed:
            return
        with (
            contextlib.suppress(OSError),
            scratch_file(self._file.parent) as (stream, path),
        ):
            stream.write(json.dumps(self._known, sort_keys=True).encode())
            stream.flush()
            path.replace(self._file)
            self._changed = False


def _stamp(blob: Path) -> Stamp:
    found = blob.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
