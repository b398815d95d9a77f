"""The scripts that device packages carry as tests: they find what they are there to find."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from assembler.errors import ConfigError
from assembler.targets import KNOWN, family_of, owner_of
from assembler.verify.gfx.flags import processors
from tests.conftest import ROOT
from tests.unit.gfx.gfxmake import GFX942, GFX950, GFX1201, bundle, compressed, elf, host_elf, kpack

SCRIPT = ROOT / "recipes" / "_scripts" / "installed_device.py"
MINE, OTHER = elf(GFX942), elf(GFX950)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("installed_device", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_scripts_table_is_that_of_the_reader(script: ModuleType) -> None:
    table = {name: number for number, name in script.NAMES.items()}
    assert set(table) == set(KNOWN)
    numbers = {row.name: row.mach for row in processors().values()}
    assert table == {name: numbers[name] for name in KNOWN}


def run(
    prefix: Path, files: dict[str, bytes], name: str = "x-device-gfx942", lost: str = ""
) -> subprocess.CompletedProcess[str]:
    """Install some files and run the script as rattler-build does."""
    for path, data in files.items():
        (prefix / path).parent.mkdir(parents=True, exist_ok=True)
        (prefix / path).write_bytes(data)
    record = prefix / "conda-meta" / f"{name}-1.0-h0_0.json"
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps({"files": [*files, *([lost] if lost else [])]}))
    return subprocess.run(
        [sys.executable, SCRIPT],
        env={**os.environ, "PKG_NAME": name, "PKG_VERSION": "1.0", "PREFIX": str(prefix)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_code_for_the_own_target_passes_in_every_wrapping(tmp_path: Path) -> None:
    fat = bundle([("hipv4-amdgcn-amd-amdhsa--gfx942", MINE)])
    done = run(
        tmp_path,
        {
            "a/k.co": MINE,
            "a/k_gfx942.hsaco": fat,
            "a/gfx942130.fdb.txt": b"database\n",
            "a/flatmm_uk_gfx9_f16.co": MINE,
            "a/module.so": host_elf((".hip_fatbin", fat)),
            "a/x_gfx942.kpack": kpack([("lib.so", "gfx942", MINE)]),
        },
    )
    assert done.returncode == 0, done.stderr
    assert "5 pieces of code for gfx942, and no other; 0 compressed, 3 files named" in done.stdout


@pytest.mark.parametrize(
    ("path", "data", "words"),
    [
        ("k.co", OTHER, "k.co holds code for gfx950"),
        ("k.co", bundle([("hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+", MINE)]), "code for gfx90a"),
        ("m.so", host_elf((".hip_fatbin", bundle([("hipv4-amdgcn-amd-amdhsa--gfx950", OTHER)]))),
         "code for gfx950"),
        ("p.kpack", kpack([("lib.so", "gfx942", MINE), ("lib.so", "gfx950", OTHER)]),
         "code for gfx950"),
        ("table_gfx950.dat", b"table", "named after gfx950"),
        ("k.co", elf(0x7F), "code for machine 0x7f"),
    ],
)  # fmt: skip
def test_code_for_another_target_fails_with_the_file(
    tmp_path: Path, path: str, data: bytes, words: str
) -> None:
    done = run(tmp_path, {"a/mine.co": MINE, f"a/{path}": data})
    assert done.returncode == 1
    assert words in done.stderr


def test_a_file_that_is_not_there_fails(tmp_path: Path) -> None:
    done = run(tmp_path, {"a/k.co": MINE}, lost="a/gone.co")
    assert done.returncode == 1
    assert "a/gone.co is not there" in done.stderr


def test_a_package_without_code_does_not_pass(tmp_path: Path) -> None:
    done = run(tmp_path, {"a/table.dat": b"table"})
    assert done.returncode == 0
    assert done.stdout == "not-run: x-device-gfx942 holds no code at all\n"


def test_compressed_bundles_are_counted_and_the_magic_by_chance_is_none(tmp_path: Path) -> None:
    plain = bundle([("hipv4-amdgcn-amd-amdhsa--gfx942", MINE)])
    done = run(
        tmp_path, {"a/k.co": compressed(plain), "a/text.so": b"x__CLANG_OFFLOAD_BUNDLE__"}
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "0 pieces of code for gfx942, and no other; 1 compressed" in done.stdout


def test_a_familys_package_holds_its_members_code(tmp_path: Path) -> None:
    name = "x-device-family-gfx12"
    done = run(tmp_path, {"a/amd-gfx120x/k.hsaco": elf(GFX1201)}, name)
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, {"a/amd-gfx120x/k.hsaco": MINE}, name)
    assert "code for gfx942" in done.stderr


@pytest.mark.parametrize(
    ("targets", "owner"),
    [
        ((), ""),
        (("gfx942",), "gfx942"),
        (("gfx1100", "gfx1151"), "gfx11"),
        (("gfx90a", "gfx942"), "gfx9"),
    ],
)
def test_what_several_targets_share_is_their_familys(targets: tuple[str, ...], owner: str) -> None:
    assert owner_of(targets) == owner
    with pytest.raises(ConfigError, match="several families"):
        owner_of(("gfx1100", "gfx1200"))
    assert {family_of(name) for name in KNOWN} == {"gfx9", "gfx10", "gfx11", "gfx12"}
