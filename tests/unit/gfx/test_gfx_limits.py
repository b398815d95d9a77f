"""Memory stays bounded whatever the file's size; measured in a process of its own."""

from __future__ import annotations

import gzip
import hashlib
import struct
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import gfxmake as make
import pytest
import zstandard

LIMIT = 200 << 20
PROGRAM = """
import re, sys
from pathlib import Path
from assembler.verify.gfx import inventory
items = list(inventory(Path(sys.argv[1]), kernels=True))
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1)
print(len(items), int(peak) * 1024)
for item in items[:3]:
    print(getattr(item, "processor", None) or item.reason)
"""


def run(path: Path) -> tuple[int, int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    count, peak = map(int, first.split())
    return count, peak, rest


def sparse(path: Path, size: int, tail: bytes) -> Path:
    with path.open("wb") as stream:
        stream.truncate(size)
        stream.seek(size)
        stream.write(tail)
    return path


def test_a_file_much_larger_than_the_bound(tmp_path: Path) -> None:
    count, peak, (found,) = run(sparse(tmp_path / "big.bin", 600 << 20, make.elf()))
    assert (count, found) == (1, "gfx942")
    assert peak < LIMIT


@pytest.mark.parametrize("method", ["zlib", "zstd"])
def test_a_big_compressed_bundle_with_the_widest_window(tmp_path: Path, method: str) -> None:
    first = make.bundle([("hipv4-amdgcn-amd-amdhsa--gfx942", make.elf())])
    if method == "zstd":
        options = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=0)
        packer = zstandard.ZstdCompressor(compression_params=options).compressobj()
    else:
        packer = zlib.compressobj(1)
    digest, packed, size = hashlib.md5(), b"", 0
    for piece in (first, *[bytes(1 << 20)] * 260):
        digest.update(piece)
        packed += packer.compress(piece)
        size += len(piece)
    packed += packer.flush()
    head = make.compressed(b"", 3, method)[:8]
    head += struct.pack("<QQ", 32 + len(packed), size) + digest.digest()[:8]
    path = tmp_path / "lib.so"
    path.write_bytes(make.host_elf((".hip_fatbin", head + packed)))
    count, peak, (found,) = run(path)
    assert (count, found) == (1, "gfx942")
    assert peak < LIMIT


def test_a_gzip_bomb_in_a_tar(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    info = tarfile.TarInfo("zeros.bin")
    info.size = 300 << 20
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    with path.open("wb") as out:
        out.write(packer.compress(info.tobuf()))
        for _ in range(300):
            out.write(packer.compress(bytes(1 << 20)))
        out.write(packer.compress(bytes(1024)) + packer.flush())
    count, peak, _ = run(path)
    assert count == 0
    assert peak < LIMIT


def test_many_kernels_keep_only_what_is_told(tmp_path: Path) -> None:
    kernels = [{".name": f"kernel{n}", ".vgpr_count": 8, ".pad": "x" * 400} for n in range(40_000)]
    path = tmp_path / "k.co"
    path.write_bytes(make.elf(kernels=kernels))
    del kernels
    count, peak, (found,) = run(path)
    assert (count, found) == (1, "gfx942")
    assert peak < LIMIT


def test_files_in_gzip_larger_than_memory_allows(tmp_path: Path) -> None:
    path = tmp_path / "x.bin.gz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        for _ in range(250):
            out.write(bytes(1 << 20))
        out.write(make.elf())
    count, peak, (found,) = run(path)
    assert (count, found) == (1, "gfx942")
    assert peak < LIMIT


def test_the_peak_that_is_measured_is_the_childs_own(tmp_path: Path) -> None:
    ballast = bytearray(300 << 20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    _, peak, _ = run(sparse(tmp_path / "small.bin", 10, b""))
    assert 5 << 20 < peak < 100 << 20
