"""How layers are compressed, pinned: the bytes of a blob depend on it, diff_ids do not.

zstd's bytes depend on the library's version, on whether it runs in multi-thread mode and on whether
the content size is known; not on the number of threads (from one up) nor on how writes are cut. So:
always at least one thread, never a size.

gzip is zlib-ng's, whose bytes are the same on every CPU (isal's are not); at some of its levels
they depend on how writes are cut, so it gets blocks of one size. The codec's label is recorded in
the image.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import zstandard
from zlib_ng import zlib_ng

from assembler.errors import ConfigError

# What the decompressors raise for bytes that are not theirs.
CORRUPT = (zstandard.ZstdError, cast("type[Exception]", zlib_ng.error))
LAYER = "application/vnd.oci.image.layer.v1.tar"
LEVELS = {"zstd": range(1, 20), "gzip": range(10)}
DEFAULT_LEVEL = {"zstd": 3, "gzip": 4}
_BLOCK = 1 << 20  # bytes that zlib-ng gets at a time
_WORDS = re.compile(r"(?P<name>[a-z]+)(?::(?P<level>[0-9]+))?", re.ASCII)


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

    @classmethod
    def parse(cls, text: str, level: int | None = None) -> Codec:
        """Return the codec of ``NAME[:LEVEL]``; ConfigError for another, or two levels.

        >>> Codec.parse("zstd:9")
        Codec(name='zstd', level=9)
        """
        found = _WORDS.fullmatch(text)
        if not found:
            raise ConfigError(f"{text!r} is no layer compression", remedy="write one like zstd:9")
        if found["level"] is None:
            return cls.of(found["name"], level)
        if level not in (None, int(found["level"])):
            raise ConfigError(
                f"the compression {text} and the level {level} contradict each other",
                remedy="give the level once",
            )
        return cls.of(found["name"], int(found["level"]))

    @property
    def media_type(self) -> str:
        """The media type of a layer."""
        return f"{LAYER}+{self.name}"

    @property
    def label(self) -> str:
        """What the bytes depend on, in words that go into the image."""
        if self.name == "gzip":
            binding = importlib.metadata.version("zlib-ng")
            library = zlib_ng.ZLIBNG_RUNTIME_VERSION
            return f"gzip level {self.level}, zlib-ng {library} by zlib-ng {binding}"
        version = ".".join(map(str, zstandard.ZSTD_VERSION))
        return (
            f"zstd level {self.level}, libzstd {version} by zstandard {zstandard.__version__}, "
            "multi-threaded, without content size"
        )

    def start(self, threads: int = 1) -> Stream:
        """Begin a frame or member; ``threads`` only changes how fast it goes."""
        if self.name == "gzip":
            return _Blocks(zlib_ng.compressobj(self.level, zlib_ng.DEFLATED, 31))
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
    stream = zlib_ng.decompressobj(31)
    for chunk in chunks:
        rest = chunk
        while rest:
            if data := stream.decompress(rest):
                yield data
            rest = stream.unused_data
            if stream.eof:
                stream = zlib_ng.decompressobj(31)


class _Blocks:
    """Hands a compressor blocks of one size, however they are written."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._rest = bytearray()

    def compress(self, data: bytes, /) -> bytes:
        self._rest += data
        out = []
        while len(self._rest) >= _BLOCK:
            out.append(self._stream.compress(bytes(self._rest[:_BLOCK])))
            del self._rest[:_BLOCK]
        return b"".join(out)

    def flush(self) -> bytes:
        last = self._stream.compress(bytes(self._rest))
        self._rest.clear()
        return last + self._stream.flush()
