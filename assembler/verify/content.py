"""What files say inside that they should not: host paths, stale byte code, dead interpreters."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import IO

from assembler.verify.findings import Finding, Severity
from assembler.verify.tree import Entry, Tree

HASH_BASED = 0b1
PIECE = 4 << 20
PROGRAM_FOLDERS = ("bin", "sbin", "libexec")


def find_content(tree: Tree, host_paths: tuple[str, ...]) -> Iterator[Finding]:
    """Look into every file once for host paths, and into headers of byte code and scripts."""
    wanted = [(text, text.encode()) for text in host_paths]
    found: dict[str, list[str]] = {text: [] for text in host_paths}
    for entry in tree.files():
        if entry.size == 0 or entry.hardlink is not None:
            continue
        with tree.open(entry.path) as stream:
            yield from _header(tree, entry, stream.read(256))
            for text in _search(stream, wanted):
                found[text].append(entry.path)
    for text, paths in found.items():
        for path in paths:
            yield Finding(
                id="hygiene/host-path",
                subject=path,
                what=f"holds {text!r}, a path of the machine that it was made on",
                remedy="have the recipe replace it by the prefix, or leave the file out",
            )


def _search(stream: IO[bytes], wanted: Sequence[tuple[str, bytes]]) -> set[str]:
    """Return which texts a file holds, read in pieces that overlap by the longest of them."""
    overlap = max((len(sought) for _, sought in wanted), default=1) - 1
    present: set[str] = set()
    stream.seek(0)
    tail = b""
    while data := stream.read(PIECE):
        piece = tail + data
        present |= {text for text, sought in wanted if sought in piece}
        tail = piece[len(piece) - overlap :] if overlap else b""
    return present


def _header(tree: Tree, entry: Entry, head: bytes) -> Iterator[Finding]:
    if entry.name.endswith(".pyc"):
        yield from _byte_code(tree, entry, head)
    elif head.startswith(b"#!") and _is_program(tree, entry):
        yield from _script(tree, entry, head)


def _is_program(tree: Tree, entry: Entry) -> bool:
    """Modules of the standard library start with #! too, and nobody calls them so."""
    folder = entry.path.rpartition("/")[0].rpartition("/")[2]
    return tree.kind == "image" and entry.executable and folder in PROGRAM_FOLDERS


def _byte_code(tree: Tree, entry: Entry, head: bytes) -> Iterator[Finding]:
    """Compare a timestamp .pyc (PEP 552) with its source: a stale one is compiled at each start."""
    if len(head) < 16:
        return
    flags, mtime, size = struct.unpack_from("<III", head, 4)
    folder, _, name = entry.path.rpartition("/")
    if flags & HASH_BASED or not folder.endswith("__pycache__"):
        return
    source = tree.entries.get(
        f"{folder.rpartition('/')[0]}/{name.partition('.')[0]}.py".lstrip("/")
    )
    if source is None:
        return
    if int(source.mtime) & 0xFFFFFFFF != mtime or source.size & 0xFFFFFFFF != size:
        yield Finding(
            id="hygiene/stale-byte-code",
            severity=Severity.WARNING,
            subject=entry.path,
            what="does not match its source's time or size, so Python compiles it at every start",
            remedy="write hash-based byte code, or none",
        )


def _script(tree: Tree, entry: Entry, head: bytes) -> Iterator[Finding]:
    words = head[2:].split(b"\n", 1)[0].decode(errors="replace").split()
    if not words:
        return
    interpreter = words[0]
    missing = interpreter if tree.file_at(interpreter.lstrip("/")) is None else None
    if missing is None and interpreter.endswith("/env"):
        program = next((word for word in words[1:] if not word.startswith("-")), "")
        missing = program if program and tree.which(program) is None else None
    if missing is not None:
        yield Finding(
            id="hygiene/dead-script",
            severity=Severity.WARNING,
            subject=entry.path,
            what=f"is a script for {missing}, which is not in the image",
            remedy="leave it out, since it cannot run here",
        )
