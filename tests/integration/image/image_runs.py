"""What runs in engines: a program without a C library, archives, and how programs are called."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

from assembler.image.archive import write_archive
from assembler.image.compression import Codec
from assembler.image.layout import Layout
from assembler.progress import SilentProgress

CODECS = (Codec("zstd", 3), Codec("gzip", 6))
GREETING = b"hello from the image\n"
LIMITS = ["nofile=1024:1024", "nproc=1024:1024"]


def greeter() -> bytes:
    """Return a static x86-64 program that writes the greeting: no libc, no loader."""
    code = (
        b"\xb8\x01\x00\x00\x00\xbf\x01\x00\x00\x00\x48\x8d\x35\x10\x00\x00\x00\xba"
        + struct.pack("<I", len(GREETING))
        + b"\x0f\x05\xb8\x3c\x00\x00\x00\x31\xff\x0f\x05"
    )
    assert len(code) == 0x21
    size = 64 + 56 + len(code) + len(GREETING)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        2,
        62,
        1,
        0x400078,
        64,
        0,
        0,
        64,
        56,
        1,
        0,
        0,
        0,
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, size, size, 0x1000)
    return head + segment + code + GREETING


def run(*command: str | Path, env: dict[str, str] | None = None, check: bool = True) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}, timeout=120,
    )  # fmt: skip
    if check and done.returncode:
        raise AssertionError(f"{command}: {done.stderr}")
    return done.stdout


def archive(layout: Path) -> Path:
    path = layout.with_suffix(".tar")
    with path.open("wb") as sink:
        write_archive(Layout(layout), sink, SilentProgress())
    return path
