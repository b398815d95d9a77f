"""Prefix replacement: the place a package was built in becomes the place it is installed in.

Text and binary files are changed as py-rattler changes them, byte for byte (the differential test
compares the two). Binary replacement works on C strings: the string that holds the placeholder is
rewritten and padded with NUL to its old length. Both work on streams in bounded memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from assembler.errors import ImageError

SHEBANG_LIMIT = 127  # the longest first line that Linux takes, in bytes
_SHEBANG = re.compile(r"^(#!(?:[ ]*)(/(?:\\ |[^ \n\r\t])*)(.*))$")
_PYTHON = re.compile(r"^python(?:\d+(?:\.\d+)?)?$", re.ASCII)


def check_length(placeholder: bytes, prefix: bytes, path: str) -> None:
    """Raise ImageError when a binary file's placeholder is shorter than the prefix."""
    if len(prefix) > len(placeholder):
        raise ImageError(
            f"the prefix {prefix.decode()} is longer than the {len(placeholder)} bytes that {path} "
            "has room for",
            remedy="choose a shorter prefix in stack.toml, or build the package again",
        )


def replace_binary(chunks: Iterable[bytes], placeholder: bytes, prefix: bytes) -> Iterator[bytes]:
    """Yield a binary file's bytes with the placeholder replaced; the length stays the same.

    Holds no more than two chunks and the longest C string that contains the placeholder.
    """
    source = iter(chunks)
    buffer = b""
    ended = False
    while True:
        index = buffer.find(placeholder)
        if index < 0:
            # What may be the start of a placeholder waits for the next chunk.
            keep = 0 if ended else min(len(placeholder) - 1, len(buffer))
            if len(buffer) > keep:
                yield buffer[: len(buffer) - keep]
                buffer = buffer[len(buffer) - keep :]
            if ended:
                return
            more = next(source, None)
            ended = more is None
            buffer += more or b""
            continue
        end = buffer.find(b"\0", index + len(placeholder))
        pieces = [buffer]
        while end < 0 and not ended:
            more = next(source, None)
            if more is None:
                ended = True
                break
            found = more.find(b"\0")
            if found >= 0:
                end = sum(map(len, pieces)) + found
            pieces.append(more)
        buffer = b"".join(pieces)
        end = len(buffer) if end < 0 else end
        old = buffer[index:end]
        new = old.replace(placeholder, prefix)
        yield buffer[:index]
        yield new + bytes(len(old) - len(new))
        buffer = buffer[end:]


def _use_env(line: str) -> str:
    found = _SHEBANG.match(line)
    if not found:
        return line
    path, options = found.group(2), found.group(3)
    name = path.rpartition("/")[2]
    if _PYTHON.match(name):
        # A polyglot: sh runs python by its full path, python sees a string.
        return f"#!/bin/sh\n'''exec' \"{path}\"{options} \"$0\" \"$@\" #'''"
    return f"#!/usr/bin/env {name}{options}"


def _shebang(line: bytes, placeholder: str, prefix: str) -> bytes:
    text = line.decode("utf-8", "replace")
    if " " in prefix:
        if placeholder in text:
            text = _use_env(text).replace(placeholder, prefix)
        return text.encode()
    text = text.replace(placeholder, prefix)
    return (text if len(text.encode()) <= SHEBANG_LIMIT else _use_env(text)).encode()


def replace_text(data: bytes, placeholder: bytes, prefix: bytes) -> bytes:
    """Return a text file's bytes with the placeholder replaced.

    A first line that starts an interpreter is rewritten through env or sh when it becomes longer
    than the kernel takes, or holds a space.
    """
    if data.startswith(b"#!") and b"\n" in data:
        line, newline, rest = data.partition(b"\n")
        first = _shebang(line, placeholder.decode(), prefix.decode())
        return first + newline + rest.replace(placeholder, prefix)
    return data.replace(placeholder, prefix)


def script_shebang(python: str) -> str:
    """Return the first line of an entry point for the interpreter at an absolute path."""
    if len(python.encode()) > SHEBANG_LIMIT - 2 or " " in python:
        return f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\" #'''"
    return f"#!{python}"
