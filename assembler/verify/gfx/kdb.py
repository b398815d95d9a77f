"""Reads MIOpen's kernel databases (.kdb, .ukdb): code objects in a SQLite table.

Source: MIOpen's kern_db (ROCm/MIOpen, src/include/miopen/kern_db.hpp): table ``kern_db`` with
``kernel_name``, ``kernel_args``, ``kernel_blob``, ``kernel_hash``, ``uncompressed_size``; the blob
is bzip2 data unless ``uncompressed_size`` is 0.
"""

from __future__ import annotations

import bz2
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from assembler.verify.gfx.model import MalformedError
from assembler.verify.gfx.source import CHUNK, Source, buffered, pieces_of, spool

MAGIC = b"SQLite format 3\0"
TABLE = "kern_db"
COLUMNS = {"kernel_name", "kernel_blob", "uncompressed_size"}
MAX_OBJECT = 1 << 30
MAX_VALUE = 64 << 20
"""No row (packed) takes more bytes than this."""
STEPS = 100_000
MAX_STEPS_PER_ROW = 200
"""Virtual machine steps (times STEPS) that one row may take before the file counts as damaged."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel file: its name, where its row is, and its bytes or why they cannot be had."""

    number: int
    name: str
    compression: str | None
    content: Source | MalformedError


def read_kdb(source: Source) -> Iterator[Row]:
    """Yield the rows of a kernel database; nothing for SQLite files of another kind.

    Raises MalformedError when SQLite finds the file damaged. ``content`` is open until the next
    row.
    """
    with ExitStack() as stack:
        path = source.plain_file()
        if path is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="assembler-"))
            path = Path(folder, "kernels.kdb")
            with path.open("wb") as copy:
                copy.writelines(pieces_of(buffered(source)))
        try:
            database = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            stack.callback(database.close)
            yield from _rows(database, source.size)
        except (sqlite3.Error, UnicodeError, OverflowError, ValueError, TypeError) as error:
            raise MalformedError(0, f"SQLite cannot read the kernel database ({error})") from None


def _rows(database: sqlite3.Connection, room: int) -> Iterator[Row]:
    steps = 0

    def watch() -> bool:
        nonlocal steps
        steps += 1
        return steps > MAX_STEPS_PER_ROW

    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(MAX_VALUE, room))
    database.set_progress_handler(watch, STEPS)
    database.text_factory = lambda data: data.decode("utf-8", "replace")
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cache_size = -4096")
    kind = database.execute("SELECT type FROM sqlite_master WHERE name = ?", (TABLE,)).fetchone()
    if kind != ("table",):
        return
    columns = {str(row[1]) for row in database.execute(f"PRAGMA table_info({TABLE})")}
    if not columns >= COLUMNS:
        return
    numbers = database.execute(
        f"SELECT rowid, kernel_name, uncompressed_size FROM {TABLE} ORDER BY rowid"  # noqa: S608
    )
    last: int | None = None
    while (found := numbers.fetchone()) is not None:
        steps = 0
        number, name, size = found
        if last is not None and number <= last:
            raise MalformedError(0, "the kernel database's pages go round in a ring")
        last = number
        compression = "bzip2" if size else None
        content: Source | MalformedError
        try:
            content = _content(database, int(number), int(size or 0), room)
        except MalformedError as error:
            content = error
        yield Row(int(number), str(name), compression, content)
        if isinstance(content, Source):
            content.close()


def _content(database: sqlite3.Connection, number: int, size: int, room: int) -> Source:
    if not 0 <= size <= MAX_OBJECT:
        raise MalformedError(0, f"a kernel of {size} bytes")
    try:
        with database.blobopen(TABLE, "kernel_blob", number, readonly=True) as blob:
            if len(blob) > room:  # its pages go round in a ring
                raise MalformedError(0, f"a blob of {len(blob)} bytes in a file of {room}")
            if not size:
                return spool(iter(lambda: blob.read(CHUNK), b""), limit=MAX_OBJECT)
            plain = spool(_inflate(blob), limit=size)
    except sqlite3.Error as error:
        raise MalformedError(0, f"the blob cannot be read ({error})") from None
    if plain.size != size:
        raise MalformedError(0, f"unpacks to {plain.size} bytes, the row says {size}")
    return plain


def _inflate(blob: sqlite3.Blob) -> Iterator[bytes]:
    stream = bz2.BZ2Decompressor()
    data = b""
    while not stream.eof:
        if stream.needs_input and not (data := blob.read(CHUNK)):
            raise MalformedError(0, "bzip2 data is cut off")
        try:
            piece = stream.decompress(data, CHUNK)
        except (OSError, ValueError) as error:
            raise MalformedError(0, f"bzip2 data is damaged ({error})") from None
        data = b""
        if piece:
            yield piece
