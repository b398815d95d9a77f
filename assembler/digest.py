"""Content addresses: SHA-256 of files, streams and plain data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO

CHUNK = 1 << 20


def sha256_file(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes, read in constant memory."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_bytes(data: bytes) -> str:
    """Return the hexadecimal SHA-256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(data: object) -> bytes:
    """Serialise plain data to one spelling: sorted keys, compact separators, UTF-8.

    Sets and tuples become sorted and ordinary lists; anything JSON has no word for is a TypeError.
    """

    def plain(value: object) -> object:
        if isinstance(value, set | frozenset):
            return sorted(str(item) for item in value)
        raise TypeError(f"not plain data: {type(value).__name__}")

    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=plain
    ).encode()


def digest_of(data: object) -> str:
    """Return the hexadecimal SHA-256 of plain data in its canonical spelling."""
    return sha256_bytes(canonical_json(data))


def chunks(stream: IO[bytes], size: int = CHUNK) -> Iterable[bytes]:
    """Yield a stream's bytes in pieces of at most ``size``."""
    while data := stream.read(size):
        yield data
