"""The reader on real wheels from PyPI, every code object compared with LLVM's tools.

The wheels come from the folder ASSEMBLER_TEST_WHEELS or build/sources, else through pip, into that
folder when it is named.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from assembler.verify.gfx import CodeObject, Feature, inventory

pytestmark = pytest.mark.slow
AITER = "amd-aiter==0.1.7.post2.dev18"
PLATFORM = ("--platform", "manylinux_2_35_x86_64", "--platform", "manylinux_2_24_x86_64",
            "--platform", "any", "--python-version", "310")  # fmt: skip
BATCH = 400


def local(pattern: str) -> Path | None:
    """Return the newest wheel that was fetched before, by the user or by ``assembler fetch``."""
    given = os.environ.get("ASSEMBLER_TEST_WHEELS")
    folders = [Path(given)] if given else []
    folders += sorted((Path(__file__).parents[3] / "build" / "sources").glob("*/*"))
    found = [place for folder in folders for place in sorted(folder.glob(pattern))]
    return found[-1] if found else None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that brings a wheel, or skips with pip's reason."""
    given = os.environ.get("ASSEMBLER_TEST_WHEELS")
    folder = Path(given) if given else tmp_path_factory.mktemp("wheels")

    def bring(requirement: str) -> Path:
        name, _, version = requirement.partition("==")
        pattern = f"{name.replace('-', '_')}-{version}*.whl"
        if found := local(pattern):
            return found
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
             "--pre", "-q", "--disable-pip-version-check", *PLATFORM, "-d", folder, requirement],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"{requirement} is not to be had: {done.stderr.strip()[-300:]}")
        return sorted(folder.glob(pattern))[-1]

    return bring


def objects_in(path: Path) -> list[CodeObject]:
    items = list(inventory(path))
    assert all(isinstance(item, CodeObject) for item in items), items
    return [item for item in items if isinstance(item, CodeObject)]


def headers(llvm: Any, paths: list[Path]) -> list[tuple[int, tuple[str, ...], int, str]]:
    """Return (flags, the words after them, ABI version, type) of each file by llvm-readelf."""
    found = []
    for start in range(0, len(paths), BATCH):
        text = llvm.run("llvm-readelf", "-h", *paths[start : start + BATCH])
        for block in text.split("ELF Header:")[1:]:
            flags = re.search(r"Flags:\s+0x([0-9A-Fa-f]+)(.*)", block)
            words = tuple(word.strip() for word in flags.group(2).split(",")[1:])
            abi = re.search(r"ABI Version:\s+(\d+)", block)
            kind = re.search(r"Type:\s+(\w+)", block)
            found.append((int(flags.group(1), 16), words, int(abi.group(1)), kind.group(1)))
    return found


def facts(one: CodeObject) -> tuple[int | None, tuple[str, ...], int, str]:
    signs = {Feature.ANY: "", Feature.ON: "+", Feature.OFF: "-"}
    words = [one.processor]
    words += [f"xnack{signs[one.xnack]}"] if one.xnack in signs else []
    words += [f"sramecc{signs[one.sramecc]}"] if one.sramecc in signs else []
    words += [f"generic_v{one.generic_version}"] if one.generic_version else []
    kind = {"shared": "DYN", "relocatable": "REL", "executable": "EXEC"}[one.elf_type or ""]
    return one.flags, tuple(words), (one.code_object_version or 0) - 2, kind


def test_aiters_code_objects_are_all_found(llvm: Any, wheel: Any, tmp_path: Path) -> None:
    path = wheel(AITER)
    ours = objects_in(path)
    assert Counter(one.processor for one in ours) == {"gfx942": 1281, "gfx950": 1332}
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith((".co", ".hsaco"))]
        assert sorted(names) == sorted(one.path for one in ours)
        archive.extractall(tmp_path, names)
    theirs = headers(llvm, [tmp_path / one.path for one in ours])
    assert theirs == [facts(one) for one in ours]
    assert [one.size for one in ours] == [(tmp_path / o.path).stat().st_size for o in ours]


@pytest.mark.parametrize("requirement", ["amd-mori", "bitsandbytes"])
def test_fat_binaries_of_wheels(llvm: Any, wheel: Any, tmp_path: Path, requirement: str) -> None:
    path = wheel(requirement)
    ours = objects_in(path)
    assert ours
    for name in sorted({one.path for one in ours}):
        with zipfile.ZipFile(path) as archive:
            library = Path(archive.extract(name, tmp_path))
        folder = tmp_path / f"unpacked-{library.name}"
        folder.mkdir()
        # llvm-objdump lists the entries of compressed bundles too, but writes packed bytes for them
        # (llvm-project#192729): names and sizes are compared always, headers where they are plain.
        listed = llvm.run("llvm-objdump", "--offloading", library, cwd=library.parent)
        entries = re.findall(r"Extracting offload bundle: (.+)\.(\d+)\.(\S+)", listed)
        places = [Path(f"{whole}.{number}.{entry}") for whole, number, entry in entries]
        device = [p for p in places if ".host-" not in p.name]
        here = [one for one in ours if one.path == name]
        theirs = Counter((p.name.rpartition("-amdhsa--")[2], p.stat().st_size) for p in device)
        assert theirs == Counter(
            ((one.bundle_id or "").rpartition("-amdhsa--")[2], one.size) for one in here
        )
        if not any(one.compression for one in here):
            by_name = sorted(device, key=lambda p: p.name)
            assert sorted(headers(llvm, by_name)) == sorted(facts(one) for one in here)
        for place in places:
            place.unlink()


def test_libraries_with_the_magic_as_a_string_hold_no_code() -> None:
    """triton's libraries name the magic; real ones of 500 MB tell whether that misleads."""
    path = local("triton-*.whl")
    if path is None:
        pytest.skip("no triton wheel in ASSEMBLER_TEST_WHEELS or build/sources")
    assert [item for item in inventory(path) if item.path.endswith(".so")] == []
