"""Finished segments, kept by content key: a package is compressed once.

``<root>/<first two>/<key>.segment`` holds the compressed bytes, ``<key>.json`` beside it the facts;
the facts are written last, so a segment without them does not exist. Everything may be deleted at
any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from assembler.digest import chunks


@dataclass(frozen=True)
class LayerBlob:
    """A finished layer: ``digest`` of the compressed and ``diff_id`` of the uncompressed bytes."""

    digest: str
    size: int
    diff_id: str
    tar_size: int


class Segment(BaseModel):
    """A finished segment: sizes in bytes, ``sha256`` that of the compressed bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    name: str
    sha256: str
    size: int
    tar_size: int
    entries: int
    stripped: tuple[str, ...] = ()
    not_compiled: tuple[str, ...] = ()
    activation: dict[str, str] = {}


SCRATCH = ".partial-"
UNUSED = 30 * 24 * 3600  # seconds after which a segment is not worth its room
ABANDONED = 24 * 3600  # seconds after which a scratch file has no writer any more


class SegmentCache:
    """The folder of finished segments."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def _file(self, key: str, suffix: str) -> Path:
        return self.root / key[:2] / f"{key}{suffix}"

    def get(self, key: str) -> Segment | None:
        """Return a segment's facts when it is there and has its size; content is checked on use."""
        try:
            segment = Segment.model_validate_json(self._file(key, ".json").read_bytes())
            size = self._file(key, ".segment").stat().st_size
        except (OSError, ValidationError):
            return None
        return segment if segment.key == key and segment.size == size else None

    def read(self, segment: Segment) -> Iterator[bytes]:
        """Yield a segment's compressed bytes; StaleSegmentError at the end if they have changed."""
        digest = hashlib.sha256()
        with contextlib.suppress(OSError):
            os.utime(self._file(segment.key, ".json"))  # `clean` goes by it
        with self._file(segment.key, ".segment").open("rb") as stream:
            for chunk in chunks(stream):
                digest.update(chunk)
                yield chunk
        if digest.hexdigest() != segment.sha256:
            self.drop(segment.key)
            raise StaleSegmentError(segment)

    def clean(self) -> None:
        """Remove what killed runs left a day ago, and segments that nobody used for a month."""
        now = time.time()
        for path in self.root.glob(f"*/{SCRATCH}*"):
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime > ABANDONED:
                    path.unlink()
        for path in self.root.glob("*/*.json"):
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime > UNUSED:
                    self.drop(path.stem)

    def drop(self, key: str) -> None:
        """Forget a segment."""
        for suffix in (".json", ".segment"):
            self._file(key, suffix).unlink(missing_ok=True)

    @contextmanager
    def create(self, key: str) -> Iterator[IO[bytes]]:
        """Open a file that becomes the segment's content when the block ends well.

        Call `describe` afterwards: only then does the segment exist.
        """
        final = self._file(key, ".segment")
        with scratch_file(final.parent) as (stream, path):
            yield stream
            stream.flush()
            path.replace(final)

    def describe(self, segment: Segment) -> None:
        """Record the facts of a segment whose content is in place."""
        final = self._file(segment.key, ".json")
        with scratch_file(final.parent) as (stream, path):
            stream.write(segment.model_dump_json().encode())
            stream.flush()
            path.replace(final)


class LayerRecord(BaseModel):
    """A layer that was written once: enough to name its blob again without reading it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    digest: str
    size: int
    diff_id: str
    tar_size: int
    stripped: tuple[str, ...] = ()
    not_compiled: tuple[str, ...] = ()
    activation: dict[str, str] = {}

    @classmethod
    def of(cls, key: str, blob: LayerBlob, segments: Iterable[Segment]) -> LayerRecord:
        """Return the record of a layer made of these segments."""
        segments = tuple(segments)
        return cls(
            key=key,
            digest=blob.digest,
            size=blob.size,
            diff_id=blob.diff_id,
            tar_size=blob.tar_size,
            stripped=tuple(path for segment in segments for path in segment.stripped),
            not_compiled=tuple(path for segment in segments for path in segment.not_compiled),
            activation={
                path: text for segment in segments for path, text in segment.activation.items()
            },
        )


class LayerCache:
    """Records of layers by content key; the blobs themselves stay in the layouts."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, key: str) -> LayerRecord | None:
        """Return a layer's record, or None."""
        try:
            record = LayerRecord.model_validate_json((self._root / f"{key}.json").read_bytes())
        except (OSError, ValidationError):
            return None
        return record if record.key == key else None

    def put(self, record: LayerRecord) -> None:
        """Keep a layer's record."""
        with scratch_file(self._root) as (stream, path):
            stream.write(record.model_dump_json().encode())
            stream.flush()
            path.replace(self._root / f"{record.key}.json")


class StaleSegmentError(Exception):
    """A cached segment's bytes are not those that were written; it has been dropped."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(f"the cached segment of {segment.name} has changed on disk")
        self.segment = segment


@contextmanager
def scratch_file(folder: Path, mode: int = 0o644) -> Iterator[tuple[IO[bytes], Path]]:
    """Open a new file in ``folder`` that is removed at the end unless the block renames it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=SCRATCH, dir=folder)
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(handle, mode)
            yield stream, path
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
