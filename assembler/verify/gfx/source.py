"""Bytes that can be read anywhere, in bounded memory: files, parts of files, unpacked streams."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

from assembler.verify.gfx.model import MalformedError

CHUNK = 1 << 20
IN_MEMORY = 8 << 20
"""Unpacked data up to this size (bytes) stays in memory, more goes to a temporary file."""
UNPACKED_LIMIT = 16 << 30
"""No single stream is unpacked beyond this size (bytes): more is taken for a decompression bomb."""


class Source:
    """A read-only range of bytes; a context manager that lets go of what it holds."""

    size: int

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``offset``; fewer only at the end."""
        raise NotImplementedError

    def exactly(self, offset: int, size: int, what: str) -> bytes:
        """Return ``size`` bytes, or raise MalformedError naming ``what`` was cut off."""
        data = self.read_at(offset, size)
        if len(data) != size:
            raise MalformedError(
                offset, f"{what} is cut off: {size} bytes wanted, {len(data)} there"
            )
        return data

    def window(self, offset: int, size: int) -> Source:
        """Return the part from ``offset`` with ``size`` bytes, cut at this source's end."""
        return Window(self, offset, size)

    def plain_file(self) -> Path | None:
        """Return the file whose whole content this is, for libraries that want a path."""
        return None

    def close(self) -> None:
        """Let go of descriptors and memory."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class MemorySource(Source):
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return a slice."""
        return self._data[offset : offset + size] if offset >= 0 else b""


class FileSource(Source):
    """An open file, read at positions; never mapped, so that its pages do not count as memory."""

    def __init__(self, file: IO[bytes], path: Path | None = None) -> None:
        self._file = file
        self._path = path
        self._descriptor = file.fileno()
        self.size = os.fstat(self._descriptor).st_size

    @classmethod
    def open(cls, path: Path) -> FileSource:
        """Open a regular file."""
        return cls(path.open("rb", buffering=0), path)

    def read_at(self, offset: int, size: int) -> bytes:
        """Read at a position, again after short reads."""
        if offset < 0 or offset >= self.size:
            return b""
        data = os.pread(self._descriptor, min(size, self.size - offset), offset)
        while len(data) < size and offset + len(data) < self.size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def plain_file(self) -> Path | None:
        """Return the file's path unless it is temporary."""
        return self._path

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Window(Source):
    """A part of another source, which stays open for as long as this is used."""

    def __init__(self, parent: Source, offset: int, size: int) -> None:
        self._parent = parent
        self._base = min(max(offset, 0), parent.size)
        self.size = max(0, min(size, parent.size - self._base))

    def read_at(self, offset: int, size: int) -> bytes:
        """Read from the parent, within this part."""
        if offset < 0 or offset >= self.size:
            return b""
        return self._parent.read_at(self._base + offset, min(size, self.size - offset))

    def window(self, offset: int, size: int) -> Source:
        """Return a part of the parent, so that windows do not pile up."""
        offset = min(max(offset, 0), self.size)
        return Window(self._parent, self._base + offset, min(size, self.size - offset))


class Stream(io.RawIOBase):
    """A source as a seekable binary stream, for libraries that want one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position; one before the start is an OSError as for a file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise OSError(22, "negative seek position")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: object) -> int:
        """Fill a buffer from the position on."""
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._source.read_at(self._position, len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def buffered(source: Source) -> io.BufferedReader:
    """Return a source as an ordinary buffered binary stream."""
    return io.BufferedReader(Stream(source), buffer_size=1 << 16)


def spool(pieces: Iterable[bytes], *, limit: int = UNPACKED_LIMIT) -> Source:
    """Keep a stream's bytes for reading anywhere: in memory when few, else in a temporary file.

    Raises MalformedError when there are more than ``limit`` bytes.
    """
    kept: list[bytes] = []
    file: IO[bytes] | None = None
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > limit:
                raise MalformedError(0, f"unpacks to more than {limit} bytes")
            if file is None and size > IN_MEMORY:
                file = tempfile.TemporaryFile(prefix="assembler-")  # noqa: SIM115 - outlives this
                for one in kept:
                    file.write(one)
                kept.clear()
            if file is None:
                kept.append(piece)
            else:
                file.write(piece)
        if file is None:
            return MemorySource(b"".join(kept))
        file.flush()
    except BaseException:
        if file is not None:
            file.close()
        raise
    return FileSource(file)


class Readable(Protocol):
    """Anything that gives its bytes one after another."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; nothing at the end."""


def pieces_of(stream: Readable, size: int = CHUNK) -> Iterable[bytes]:
    """Yield a stream's bytes in pieces of at most ``size``."""
    while piece := stream.read(size):
        yield piece
