"""Runs inside the channel's own python: compiles modules to unchecked-hash bytecode.

Reads records (path length, path, source length, source) from stdin and answers each on stdout with
(length, bytecode); length 0 means that the source does not compile. Uses nothing but the standard
library, of any Python since 3.8. Lengths are 4-byte little-endian.
"""

import gc
import importlib.util
import struct
import sys
from importlib import _bootstrap_external


def bytecode(path: str, source: bytes) -> bytes:
    """Return a module's .pyc file as `py_compile` with UNCHECKED_HASH makes it."""
    try:
        code = compile(source, path, "exec", dont_inherit=True, optimize=-1)
    except (SyntaxError, ValueError, RecursionError, OverflowError, MemoryError):
        return b""
    digest = importlib.util.source_hash(source)
    return bytes(_bootstrap_external._code_to_hash_pyc(code, digest, False))  # type: ignore[attr-defined]


def main() -> None:
    """Answer until stdin ends."""
    gc.disable()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while head := source.read(4):
        path = source.read(struct.unpack("<I", head)[0]).decode("utf-8", "surrogateescape")
        (length,) = struct.unpack("<I", source.read(4))
        answer = bytecode(path, source.read(length))
        sink.write(struct.pack("<I", len(answer)) + answer)
    sink.flush()


if __name__ == "__main__":
    main()
