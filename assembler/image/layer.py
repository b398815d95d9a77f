"""Layers written: directories once, then segments end to end, both digests in one pass.

A layer's blob is joined from independently compressed pieces (zstd frames or gzip members), which
is an ordinary layer to every engine. A segment that is not cached yet is made while its layer is
written, so its bytes are hashed and compressed once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from assembler.digest import digest_of
from assembler.image.cache import (
    LayerBlob,
    Segment,
    SegmentCache,
    StaleSegmentError,
    scratch_file,
)
from assembler.image.compression import CORRUPT, Codec
from assembler.image.entry import END_OF_ARCHIVE, Entry, header, parents
from assembler.image.interpreter import LazyInterpreter
from assembler.image.segment import Notes, SegmentSpec, SegmentStream, batched

LAYER_FORMAT = 1


class Source(Protocol):
    """What a layer is made of."""

    @property
    def name(self) -> str:
        """The name shown for it: a package's file name, or ``base``."""

    def key(self, codec: Codec) -> str:
        """Return the content key."""

    def stream(self, interpreter: LazyInterpreter) -> tuple[Iterable[bytes], Notes]:
        """Return the tar bytes, and notes that are complete once these are read."""


@dataclass(frozen=True)
class PackageSource:
    """A package as a layer's source."""

    spec: SegmentSpec

    @property
    def name(self) -> str:
        """The package's file name."""
        return self.spec.placement.info.file

    def key(self, codec: Codec) -> str:
        """Return the segment's content key."""
        return self.spec.key(codec)

    def stream(self, interpreter: LazyInterpreter) -> tuple[Iterable[bytes], Notes]:
        """Return the package's tar bytes and notes."""
        compiles = self.spec.placement.sources and self.spec.completes
        compiler = interpreter.get() if compiles else None
        stream = SegmentStream(self.spec, compiler)
        return stream.pieces(), stream.notes


@dataclass(frozen=True)
class LayerSpec:
    """A layer to write: its directories (every parent of its files) and its sources in order."""

    name: str
    directories: tuple[Entry, ...]
    sources: tuple[Source, ...]

    def key(self, codec: Codec) -> str:
        """Return the content key of the layer."""
        return digest_of(
            {
                "directories": hashlib.sha256(self.head).hexdigest(),
                "segments": [source.key(codec) for source in self.sources],
                "compression": codec.label,
                "format": LAYER_FORMAT,
            }
        )

    @property
    def head(self) -> bytes:
        """The tar bytes of the directories."""
        return b"".join(map(header, self.directories))


def directory_entries(
    paths: Iterable[bytes], mtime: int, explicit: Iterable[bytes] = ()
) -> tuple[Entry, ...]:
    """Return the entries of every directory above the paths, and of the explicit ones, sorted."""
    wanted: set[bytes] = set()
    for path in explicit:
        wanted.add(path)
        wanted.update(parents(path))
    for path in paths:
        folder = path.rpartition(b"/")[0]
        while folder and folder not in wanted:
            wanted.add(folder)
            folder = folder.rpartition(b"/")[0]
    return tuple(Entry.directory(path, mtime) for path in sorted(wanted))


class _Blob:
    """A layer under way: counts and hashes both forms, writes the compressed one."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._digest, self._diff_id = hashlib.sha256(), hashlib.sha256()
        self.size = self.tar_size = 0

    def tar(self, data: bytes) -> None:
        self._diff_id.update(data)
        self.tar_size += len(data)

    def packed(self, data: bytes) -> None:
        self._digest.update(data)
        self.size += len(data)
        self._stream.write(data)

    def finish(self) -> LayerBlob:
        return LayerBlob(
            f"sha256:{self._digest.hexdigest()}",
            self.size,
            f"sha256:{self._diff_id.hexdigest()}",
            self.tar_size,
        )


class LayerWriter:
    """Writes layers into a folder of blobs; one writer serves several threads."""

    def __init__(
        self,
        blobs: Path,
        cache: SegmentCache,
        codec: Codec,
        interpreter: LazyInterpreter,
        *,
        threads: int,
        advance: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._blobs = blobs
        self._cache = cache
        self._codec = codec
        self._interpreter = interpreter
        self._threads = threads
        self._advance = advance

    def write(self, layer: LayerSpec) -> tuple[LayerBlob, tuple[Segment, ...]]:
        """Write a layer and return it with the segments in it."""
        while True:
            try:
                with self._blob() as blob:
                    segments = self._fill(blob, layer)
                    return blob.finish(), segments
            except StaleSegmentError:
                # Dropped by the cache: the next round makes that segment again.
                continue

    @contextmanager
    def _blob(self) -> Iterator[_Blob]:
        with scratch_file(self._blobs) as (stream, path):
            blob = _Blob(stream)
            yield blob
            stream.flush()
            path.replace(self._blobs / blob.finish().digest.removeprefix("sha256:"))

    def _fill(self, blob: _Blob, layer: LayerSpec) -> tuple[Segment, ...]:
        self._plain(blob, layer.head)
        segments = tuple(self._source(blob, source) for source in layer.sources)
        self._plain(blob, END_OF_ARCHIVE)
        return segments

    def _plain(self, blob: _Blob, data: bytes) -> None:
        if data:
            blob.tar(data)
            blob.packed(self._codec.whole(data))

    def _source(self, blob: _Blob, source: Source) -> Segment:
        key = source.key(self._codec)
        segment = self._cache.get(key)
        if segment is None:
            return self._make(blob, source, key)

        def packed() -> Iterator[bytes]:
            for chunk in self._cache.read(segment):
                blob.packed(chunk)
                yield chunk

        try:
            for data in self._codec.expand(packed()):
                blob.tar(data)
                self._advance(len(data))
        except CORRUPT:
            self._cache.drop(key)
            raise StaleSegmentError(segment) from None
        return segment

    def _make(self, blob: _Blob, source: Source, key: str) -> Segment:
        pieces, notes = source.stream(self._interpreter)
        compressor = self._codec.start(self._threads)
        digest = hashlib.sha256()
        start, packed_start = blob.tar_size, blob.size
        with self._cache.create(key) as stream:

            def packed(data: bytes) -> None:
                if data:
                    digest.update(data)
                    stream.write(data)
                    blob.packed(data)

            for data in batched(iter(pieces)):
                blob.tar(data)
                packed(compressor.compress(data))
                self._advance(len(data))
            packed(compressor.flush())
        segment = Segment(
            key=key,
            name=source.name,
            sha256=digest.hexdigest(),
            size=blob.size - packed_start,
            tar_size=blob.tar_size - start,
            entries=notes.entries,
            stripped=tuple(sorted(notes.stripped)),
            not_compiled=tuple(sorted(notes.not_compiled)),
            activation=dict(sorted(notes.activation.items())),
        )
        self._cache.describe(segment)
        return segment
