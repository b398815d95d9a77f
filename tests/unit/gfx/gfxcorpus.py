"""Small files of every format: seeds for mutation, and what fuzzing found worth keeping."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import tempfile
import zipfile
from pathlib import Path

import gfxmake as make
import zstandard

from assembler.verify.gfx import CodeObject, Trouble, inspect
from assembler.verify.gfx.source import MemorySource
from assembler.verify.gfx.walk import walk_source

CORPUS = Path(__file__).with_name("corpus")
NAMES = ("x.bin", "x.co", "x.so", "x.conda", "x.tar.zst", "x.kpack", "x.kdb", "x.a")
KERNELS = [{".name": "k", ".vgpr_count": 8, ".wavefront_size": 64}]


def seeds() -> dict[str, bytes]:
    """Return one valid file of each format, by name."""
    one = make.elf(kernels=KERNELS)
    two = make.elf(make.GFX950, abi=4)
    pair = [("hipv4-amdgcn-amd-amdhsa--gfx942", one), ("hipv4-amdgcn-amd-amdhsa--gfx950", two)]
    plain = make.bundle(pair, align=8)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        info = tarfile.TarInfo("k.co")
        info.size = len(one)
        archive.addfile(info, io.BytesIO(one))
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg-x.tar.zst", zstandard.compress(tar.getvalue()))
    with tempfile.TemporaryDirectory() as folder:
        kdb = make.kdb(Path(folder, "x.kdb"), [("a", one, True), ("b", two, False)]).read_bytes()
    files = {
        "elf": one,
        "bundle": plain,
        "fatbin": make.host_elf((".hip_fatbin", plain + bytes(64) + plain)),
        "constant": make.host_elf((".rodata", make.MAGIC + b"\0text")),
        "offload-binary": make.host_elf((".llvm.offloading", make.offload_binary("gfx942", one))),
        "kpack-zstd": make.kpack([("lib.so", "gfx942", one)]),
        "kpack-none": make.kpack([("lib.so", "gfx942", one)], "none"),
        "kdb": kdb,
        "ar": make.ar([("k.o", one), ("a-name-of-some-length.o", plain)]),
        "tar": tar.getvalue()[:4096] + bytes(1024),
        "tar-gz": gzip.compress(tar.getvalue(), mtime=0),
        "tar-xz": lzma.compress(tar.getvalue()),
        "tar-zst": zstandard.compress(tar.getvalue()),
        "conda": zipped.getvalue(),
    }
    for version in (1, 2, 3):
        for method in ("zlib", "zstd"):
            files[f"ccob{version}-{method}"] = make.compressed(plain, version, method)
    return files


def swallow(data: bytes, name: str) -> list[CodeObject | Trouble]:
    """Read bytes as a file of that name, kernels too, and check what must hold for any bytes."""
    items: list[CodeObject | Trouble] = []
    for found in walk_source(MemorySource(data), name, top=True):
        more = (
            [found]
            if isinstance(found, Trouble)
            else list(inspect(found.source, found.path, kernels=True))
        )
        for item in more:
            assert item.path, item
            assert item.offset >= 0, item
            if isinstance(item, Trouble):
                assert item.reason, item
            else:
                assert item.size > 0, item
                assert item.processor, item
        items += more
    return items
