"""flags.toml against llvm-readelf and llc, number by number and name by name."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path
from typing import Any

from assembler.verify.gfx import CodeObject, Feature, inventory
from assembler.verify.gfx.flags import processors


def test_every_number_means_what_llvm_says(llvm: Any, tmp_path: Path) -> None:
    names: list[Path] = []
    for mach in range(256):
        head = b"\x7fELF" + bytes([2, 1, 1, 64, 4]) + bytes(7) + struct.pack(
            "<HHIQQQIHHHHHH", 1, 224, 1, 0, 0, 0, mach, 64, 56, 0, 64, 0, 0
        )  # fmt: skip
        names.append(tmp_path / f"{mach:02x}.o")
        names[-1].write_bytes(head)
    text = llvm.run("llvm-readelf", "-h", *names)
    lines = re.findall(r"Flags:\s+0x([0-9A-Fa-f]+)(?:, (\S+))?", text)
    assert len(lines) == 256
    theirs = {int(number, 16): name for number, name in lines if name}
    ours = {row.mach: row.name for row in processors().values() if not row.note}
    assert {mach: theirs.get(mach) for mach in ours} == ours
    assert set(theirs) == set(ours)
    for row in processors().values():
        assert not row.note or row.mach not in theirs


def test_every_processor_of_llc_has_its_features(llvm: Any, tmp_path: Path) -> None:
    help_text = subprocess.run(
        ["llc-22", "-march=amdgcn", "-mcpu=help"], capture_output=True, text=True, timeout=60
    ).stderr
    cpus = re.findall(r"^  (gfx\S+) +- Select the", help_text, re.MULTILINE)
    assert len(cpus) > 50
    table = {row.name: row for row in processors().values()}
    empty = tmp_path / "empty.ll"
    empty.write_text("")
    for cpu in cpus:
        out = tmp_path / f"{cpu}.o"
        llvm.run("llc", "-mtriple=amdgcn-amd-amdhsa", f"-mcpu={cpu}", "-filetype=obj", empty,
                 "-o", out)  # fmt: skip
        (one,) = inventory(out)
        assert isinstance(one, CodeObject)
        assert one.processor == cpu
        assert table[cpu].xnack is (one.xnack is not Feature.UNSUPPORTED)
        assert table[cpu].sramecc is (one.sramecc is not Feature.UNSUPPORTED)
