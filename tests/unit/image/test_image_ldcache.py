"""The loader's cache, read by ldconfig and by the verifier's own reader."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assembler.image.ldcache import Library, cache_bytes, compare, read_library
from assembler.verify.ldcache import parse_cache

LIBRARIES = [
    Library("libm.so.6", "/usr/lib/x86_64-linux-gnu/libm.so.6", 0x0303),
    Library("libx.so.9", "/usr/lib/libx.so.9", 0x0303),
    Library("libx.so.10", "/usr/lib/libx.so.10", 0x0303),
    Library("libm.so.6", "/usr/lib/second/libm.so.6", 0x0303),
]


def test_the_verifier_reads_what_is_written():
    found = parse_cache(cache_bytes(LIBRARIES))
    assert dict(found) == {
        "libm.so.6": "/usr/lib/second/libm.so.6",
        "libx.so.9": "/usr/lib/libx.so.9",
        "libx.so.10": "/usr/lib/libx.so.10",
    }


@pytest.mark.skipif(not shutil.which("ldconfig", path="/usr/sbin:/sbin"), reason="no ldconfig")
def test_ldconfig_reads_what_is_written(tmp_path):
    (tmp_path / "cache").write_bytes(cache_bytes(LIBRARIES))
    program = shutil.which("ldconfig", path="/usr/sbin:/sbin")
    out = subprocess.run([program, "-p", "-C", tmp_path / "cache"], capture_output=True, text=True,
                         check=True).stdout.splitlines()  # fmt: skip
    assert out[0].startswith("3 libs found")
    assert [line.split()[0] for line in out[1:]] == ["libx.so.10", "libx.so.9", "libm.so.6"]


@given(st.lists(st.text("ab01.9", min_size=1, max_size=6).map(str.encode), min_size=2, max_size=3))
def test_the_order_is_one(names):
    one, two, *rest = names
    assert (compare(one, two) > 0) == (compare(two, one) < 0)
    for three in rest:
        if compare(one, two) <= 0 and compare(two, three) <= 0:
            assert compare(one, three) <= 0


def test_numbers_count_by_value():
    assert compare(b"libx.so.10", b"libx.so.9") > 0
    assert compare(b"liba", b"libb") < 0
    assert compare(b"lib1", b"liba") > 0
    assert compare(b"lib", b"lib.so") < 0
    assert compare(b"libx.so.09", b"libx.so.9") == 0


def test_files_that_are_no_libraries():
    assert read_library("/x", b"text") is None
    assert read_library("/x", b"\x7fELF broken") is None
    program = Path(sys.executable).resolve().read_bytes()
    assert read_library("/python", program) is None
