"""An iterator of bytes, read as a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Pieces:
    """A file-like view of an iterator of bytes, as tarfile reads it."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes; fewer only at the end."""
        parts, length = [self._rest], len(self._rest)
        while length < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            parts.append(piece)
            length += len(piece)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]
