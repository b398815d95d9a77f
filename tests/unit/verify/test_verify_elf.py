"""ELF files reduced to what the loader reads; damage is a word, not a crash or a hang."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from assembler.verify.elf import MOST_VERSIONS, read_elf
from tests.elf_making import Elf, make_elf

FULL = make_elf(
    Elf(
        soname="libx.so.1",
        needed=["libc.so.6", "liby.so"],
        rpath="/x:$ORIGIN",
        runpath="$ORIGIN/../lib",
        interpreter="/lib64/ld-linux-x86-64.so.2",
        wants={"libc.so.6": ["GLIBC_2.38", "GLIBC_2.2.5"], "liby.so": ["Y_1"]},
        defines=["libx.so.1", "X_1"],
    )
)

PLACES = some.integers(0, len(FULL) - 1)


def test_every_fact_is_read() -> None:
    facts = read_elf(io.BytesIO(FULL))
    assert facts.trouble is None
    assert (facts.soname, facts.interpreter) == ("libx.so.1", "/lib64/ld-linux-x86-64.so.2")
    assert facts.needed == ("libc.so.6", "liby.so")
    assert (facts.rpath, facts.runpath) == (("/x", "$ORIGIN"), ("$ORIGIN/../lib",))
    assert facts.versions_needed == {
        "libc.so.6": ("GLIBC_2.38", "GLIBC_2.2.5"), "liby.so": ("Y_1",)
    }  # fmt: skip
    assert facts.versions_defined == {"libx.so.1", "X_1"}


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf (binutils)")
def test_readelf_reads_the_made_files_alike(tmp_path: Path) -> None:
    place = tmp_path / "x.so"
    place.write_bytes(FULL)
    said = subprocess.run(
        ["readelf", "-dVlW", str(place)], capture_output=True, text=True, check=True
    )
    assert said.stderr == ""
    for word in ("[libx.so.1]", "[liby.so]", "[$ORIGIN/../lib]", "GLIBC_2.38", "Name: X_1"):
        assert word in said.stdout


def test_many_versions_are_damage_not_patience() -> None:
    many = make_elf(Elf(wants={"l": [f"V_{number}" for number in range(MOST_VERSIONS + 1)]}))
    assert "symbol versions" in str(read_elf(io.BytesIO(many)).trouble)
    enough = make_elf(Elf(wants={"l": [f"V_{number}" for number in range(MOST_VERSIONS)]}))
    assert read_elf(io.BytesIO(enough)).trouble is None


@settings(max_examples=300, deadline=None)
@given(
    changes=some.lists(
        some.tuples(some.integers(0, len(FULL) - 1), some.integers(0, 255)), max_size=8
    ),
    cut=some.integers(52, len(FULL)),
)
def test_damaged_files_are_read_or_told(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(FULL)
    for place, value in changes:
        data[place] = value
    facts = read_elf(io.BytesIO(bytes(data[:cut])))
    assert facts.trouble != ""
