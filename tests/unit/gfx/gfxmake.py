"""Makes GPU code files from nothing, byte by byte after the same documents as the reader."""

from __future__ import annotations

import bz2
import hashlib
import sqlite3
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import msgpack
import zstandard

from assembler.verify.gfx import CodeObject, Trouble

Read = Callable[..., tuple[list[CodeObject], list[Trouble]]]

GFX942, GFX950, GFX90A, GFX1201 = 0x54C, 0x54F, 0x53F, 0x4E
MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"


def note(name: bytes, kind: int, data: bytes) -> bytes:
    name += b"\0"
    return (
        struct.pack("<III", len(name), len(data), kind)
        + name.ljust(len(name) + 3 & ~3, b"\0")
        + data.ljust(len(data) + 3 & ~3, b"\0")
    )


def metadata(kernels: list[dict[str, object]]) -> bytes:
    args = [{".size": 8, ".offset": 8 * i} for i in range(3)]
    return msgpack.packb(
        {
            "amdhsa.version": [1, 2],
            "amdhsa.kernels": [{".args": args, **kernel} for kernel in kernels],
            "amdhsa.target": "amdgcn-amd-amdhsa--gfx942",
        }
    )


def elf(
    flags: int = GFX942,
    *,
    abi: int = 3,
    machine: int = 224,
    osabi: int = 64,
    kind: int = 3,
    sections: tuple[tuple[str, int, bytes], ...] = (("", 0, b""), (".text", 1, b"\xbf" * 64)),
    kernels: list[dict[str, object]] | None = None,
) -> bytes:
    """An ELF64 file; ``sections`` are (name, type, bytes), the first must be the null section."""
    if kernels is not None:
        sections += ((".note", 7, note(b"AMDGPU", 32, metadata(kernels))),)
    names = b"\0"
    sections += ((".shstrtab", 3, b""),)
    offsets = {}
    for name, _, _ in sections:
        offsets[name] = 0 if not name else len(names)
        names += name.encode() + b"\0" if name else b""
    body = b""
    table = b""
    for name, sort, data in sections:
        content = names if name == ".shstrtab" else data
        at = 64 + len(body)
        size = len(content)
        if sort == 8:
            size, content = 4096, b""
        body += content.ljust(len(content) + 7 & ~7, b"\0")
        table += struct.pack("<IIQQQQIIQQ", offsets[name], sort, 0, 0, at, size, 0, 0, 8, 0)
    ident = b"\x7fELF" + bytes([2, 1, 1, osabi, abi]) + bytes(7)
    head = struct.pack(
        "<HHIQQQIHHHHHH", kind, machine, 1, 0, 0, 64 + len(body), flags,
        64, 56, 0, 64, len(sections), len(sections) - 1,
    )  # fmt: skip
    return ident + head + body + table


def bundle(entries: list[tuple[str, bytes]], align: int = 4096, host: bool = True) -> bytes:
    if host:
        entries = [("host-x86_64-unknown-linux-gnu-", b""), *entries]
    table = 32 + sum(24 + len(name) for name, _ in entries)
    at = table + -table % align
    head, body = MAGIC + struct.pack("<Q", len(entries)), b""
    for name, data in entries:
        head += struct.pack("<QQQ", at + len(body), len(data), len(name)) + name.encode()
        if data:
            body += data.ljust(len(data) + -len(data) % align, b"\0")
    last = entries[-1][1]
    if last:
        body = body[: len(body) - (-len(last) % align)]
    return head.ljust(at, b"\0") + body


def compressed(
    plain: bytes, version: int = 3, method: str = "zstd", *, digest: int | None = None
) -> bytes:
    data = zlib.compress(plain) if method == "zlib" else zstandard.compress(plain)
    if digest is None:
        digest = int.from_bytes(hashlib.md5(plain).digest()[:8], "little")
    number = {"zlib": 0, "zstd": 1}[method]
    if version == 1:
        rest = struct.pack("<IQ", len(plain), digest)
    elif version == 2:
        rest = struct.pack("<IIQ", 24 + len(data), len(plain), digest)
    else:
        rest = struct.pack("<QQQ", 32 + len(data), len(plain), digest)
    return b"CCOB" + struct.pack("<HH", version, number) + rest + data


def host_elf(*sections: tuple[str, bytes]) -> bytes:
    """An x86-64 shared object with the given sections after some of its own."""
    own = (("", 0, b""), (".text", 1, b"\x90" * 333), (".bss", 8, b""))
    return elf(0, abi=0, osabi=0, machine=62, sections=own + tuple((n, 1, d) for n, d in sections))


def kpack(
    kernels: list[tuple[str, str, bytes]], scheme: str = "zstd-per-kernel", **change: object
) -> bytes:
    """A kpack archive of (binary, target, code object)."""
    block, blobs = b"", []
    if scheme == "none":
        for _, _, data in kernels:
            block = block.ljust(len(block) + -len(block) % 64, b"\0")
            blobs.append({"offset": 64 + len(block), "size": len(data)})
            block += data
        more: dict[str, object] = {"blobs": blobs}
    else:
        block = struct.pack("<I", len(kernels))
        for _, _, data in kernels:
            frame = zstandard.compress(data)
            block += struct.pack("<I", len(frame)) + frame
        more = {"zstd_offset": 64, "zstd_size": len(block)}
    toc: dict[str, dict[str, object]] = {}
    for number, (binary, target, data) in enumerate(kernels):
        toc.setdefault(binary, {})[target] = {
            "type": "hsaco", "ordinal": number, "original_size": len(data),
        }  # fmt: skip
    whole = {
        "format_version": 1, "group_name": "blas", "gfx_arch_family": "gfx94X",
        "gfx_arches": sorted({target for _, target, _ in kernels}),
        "compression_scheme": scheme, "toc": toc, **more, **change,
    }  # fmt: skip
    head = struct.pack("<4sIQ", b"KPAK", 1, 64 + len(block)).ljust(64, b"\0")
    return head + block + msgpack.packb(whole)


def kdb(path: Path, rows: list[tuple[str, bytes, bool]]) -> Path:
    """A MIOpen kernel database of (name, code object, whether it is compressed)."""
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE kern_db (id INTEGER PRIMARY KEY ASC, kernel_name TEXT NOT NULL, "
            "kernel_args TEXT NOT NULL, kernel_blob BLOB NOT NULL, kernel_hash TEXT NOT NULL, "
            "uncompressed_size INT NOT NULL)"
        )
        for name, data, packed in rows:
            blob = bz2.compress(data) if packed else data
            row = (name, "-mcpu=gfx942", blob, hashlib.md5(data).hexdigest())
            database.execute(
                "INSERT INTO kern_db (kernel_name, kernel_args, kernel_blob, kernel_hash, "
                "uncompressed_size) VALUES (?, ?, ?, ?, ?)",
                (*row, len(data) if packed else 0),
            )
    database.close()
    return path


def ar(members: list[tuple[str, bytes]]) -> bytes:
    """A GNU archive; names of more than 15 bytes go into the long name table."""
    table, parts = b"", b""
    for name, data in members:
        raw = name.encode()
        if len(raw) > 15:
            field = f"/{len(table)}".encode()
            table += raw + b"/\n"
        else:
            field = raw + b"/"
        head = field.ljust(16) + b"0           0     0     644     " + str(len(data)).encode()
        parts += head.ljust(58) + b"`\n" + data + b"\n" * (len(data) & 1)
    if table:
        head = b"//".ljust(48) + str(len(table)).encode()
        parts = head.ljust(58) + b"`\n" + table + b"\n" * (len(table) & 1) + parts
    return b"!<arch>\n" + parts


def offload_binary(arch: str, image: bytes, triple: str = "amdgcn-amd-amdhsa") -> bytes:
    """An LLVM offload binary of one image."""
    table, texts = b"", b""
    for key, value in (("triple", triple), ("arch", arch)):
        places = []
        for text in (key, value):
            places.append(72 + 32 + len(texts))
            texts += text.encode() + b"\0"
        table += struct.pack("<QQ", *places)
    texts = texts.ljust(len(texts) + 7 & ~7, b"\0")
    start = 72 + len(table) + len(texts)
    size = start + len(image) + 7 & ~7
    head = struct.pack("<4sIQQQ", b"\x10\xff\x10\xad", 1, size, 32, 40)
    entry = struct.pack("<HHIQQQQ", 2, 4, 0, 72, 2, start, len(image))
    return (head + entry + table + texts + image).ljust(size, b"\0")
