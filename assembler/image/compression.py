"""How layers are compressed, pinned: the bytes of a blob depend on it, diff_ids do not.

zstd's bytes depend on the library's version, on whether it runs in multi-thread mode and on whether
the content size is known; not on the number of threads (from one up) nor on how writes are cut. So:
always at least one thread, never a size. The codec's label is recorded in the image.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import zstandard

from assembler.errors import ConfigError

# What the decompressors raise for bytes that are not theirs.
CORRUPT = (zstandard.ZstdError, zlib.error)
LAYER = "application/vnd.oci.image.layer.v1.tar"
LEVELS = {"zstd": range(1, 20), "gzip": range(10)}
DEFAULT_LEVEL = {"zstd": 3, "gzip": 6}


class Stream(Protocol):
    """A compression or decompression under way."""

    def compress(self, data: bytes, /) -> bytes:
        """Take uncompressed bytes, return what is ready of the compressed ones."""

    def flush(self) -> bytes:
        """End the frame or member and return the rest."""


@dataclass(frozen=True)
class Codec:
    """A compressor and its level; pieces compressed one by one can be joined."""

    name: str = "zstd"
    level: int = 3

    @classmethod
    def of(cls, name: str, level: int | None = None) -> Codec:
        """Return the codec of that name; ConfigError when there is no such level."""
        if name not in LEVELS:
            raise ConfigError(f"{name!r} is no layer compression", remedy="use zstd or gzip")
        level = DEFAULT_LEVEL[name] if level is None else level
        if level not in LEVELS[name]:
            levels = LEVELS[name]
            raise ConfigError(
                f"{name} has no level {level}", remedy=f"choose {levels[0]} to {levels[-1]}"
            )
        return cls(name, level)

    @property
    def media_type(self) -> str:
        """The media type of a layer."""
        return f"{LAYER}+{self.name}"

    @property
    def label(self) -> str:
        """What the bytes depend on, in words that go into the image."""
        if self.name == "gzip":
            return f"gzip level {self.level}, zlib {zlib.ZLIB_RUNTIME_VERSION}"
        version = ".".join(map(str, zstandard.ZSTD_VERSION))
        return (
            f"zstd level {self.level}, libzstd {version} by zstandard {zstandard.__version__}, "
            "multi-threaded, without content size"
        )

    def start(self, threads: int = 1) -> Stream:
        """Begin a frame or member; ``threads`` only changes how fast it goes."""
        if self.name == "gzip":
            return zlib.compressobj(self.level, zlib.DEFLATED, 31)
        return zstandard.ZstdCompressor(
            level=self.level,
            threads=max(1, threads),
            write_content_size=False,
            write_checksum=False,
            write_dict_id=False,
        ).compressobj()

    def whole(self, data: bytes) -> bytes:
        """Return ``data`` as one frame or member."""
        stream = self.start()
        return stream.compress(data) + stream.flush()

    def expand(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the uncompressed bytes of joined frames or members."""
        if self.name == "gzip":
            return _gunzip(chunks)
        return _unzstd(chunks)


def _unzstd(chunks: Iterable[bytes]) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    stream = decompressor.decompressobj(read_across_frames=True)
    for chunk in chunks:
        if data := stream.decompress(chunk):
            yield data


def _gunzip(chunks: Iterable[bytes]) -> Iterator[bytes]:
    stream = zlib.decompressobj(31)
    for chunk in chunks:
        rest = chunk
        while rest:
            if data := stream.decompress(rest):
                yield data
            rest = stream.unused_data
            if stream.eof:
                stream = zlib.decompressobj(31)
