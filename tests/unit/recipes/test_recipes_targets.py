"""Which GPU targets a file is for, from how wheels spell them; and the wheel script's rules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from assembler.targets import KNOWN, spelled_targets
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """recipes/_scripts/wheel.py as a module."""
    path = ROOT / "recipes" / "_scripts" / "wheel.py"
    spec = importlib.util.spec_from_file_location("wheel_script", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["wheel_script"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("gfx942", ("gfx942",)),
        ("gfx942130", ("gfx942",)),  # 304 compute units
        ("gfx90a68", ("gfx90a",)),
        ("gfx90878", ("gfx908",)),
        ("gfx906", ("gfx906",)),
        ("gfx120x", ("gfx1200", "gfx1201")),
        ("gfx11xx", ("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152",
                     "gfx1153")),
        ("gfx803", ("gfx803",)),
        ("gfx7xx", ("gfx7xx",)),
    ],
)  # fmt: skip
def test_names_in_file_names_are_read(name: str, targets: tuple[str, ...]) -> None:
    assert spelled_targets(name) == targets


@pytest.mark.parametrize("name", KNOWN)
def test_a_targets_own_name_is_itself(name: str) -> None:
    assert spelled_targets(name) == (name,)


@pytest.mark.parametrize(
    ("path", "targets"),
    [
        ("torch/lib/rocblas/library/TensileLibrary_Type_HH_Contraction_gfx942.co", ("gfx942",)),
        ("torch/lib/rocblas/library/Kernels.so-000-gfx90a-xnack+.hsaco", ("gfx90a",)),
        ("torch/lib/hipblaslt/library/gfx950/extop_gfx950.co", ("gfx950",)),
        ("torch/share/miopen/db/gfx942130.HIP.fdb.txt", ("gfx942",)),
        ("torch/lib/aotriton.images/amd-gfx942/flash/attn_fwd/x.hsaco", ("gfx942",)),
        ("torch/lib/rocblas/library/TensileManifest.txt", None),
        ("torch/lib/libtorch_hip.so", None),
        ("torch/share/miopen/db/miopen.db", None),
    ],
)
def test_the_recipes_device_part_takes_what_is_for_a_target(
    script: ModuleType, path: str, targets: tuple[str, ...] | None
) -> None:
    parts, _leave_out = script.read_rules(ROOT / "recipes" / "rocm" / "pytorch" / "parts.toml")
    [device] = [part for part in parts if part.name == "device"]
    assert device.targets(path, {}) == targets


@pytest.mark.parametrize("parts", sorted((ROOT / "recipes").rglob("parts.toml")), ids=str)
def test_every_rule_has_a_name_and_a_reason(script: ModuleType, parts: Path) -> None:
    for rules in script.read_rules(parts):
        for rule in rules:
            assert rule.name
            assert len(rule.reason) > 10
        assert len({rule.name for rule in rules}) == len(rules)


def test_a_familys_files_are_in_its_own_package_or_end_the_build(script: ModuleType) -> None:
    parts, leave_out = script.read_rules(ROOT / "recipes" / "rocm" / "pytorch" / "parts.toml")
    [device] = [part for part in parts if part.name == "device"]
    shared = "torch/lib/aotriton.images/amd-gfx11xx/flash/attn_fwd.hsaco"
    own = "torch/lib/aotriton.images/amd-gfx1100/flash/attn_fwd.hsaco"

    def wants(gfx: str, path: str, *, alone: bool = False) -> bool:
        selection = script.Selection(parts, leave_out, device, gfx, {}, alone)
        return bool(selection.wants(path, 1))

    assert [wants(gfx, shared) for gfx in ("gfx11", "gfx1100", "gfx1101", "gfx12")] == [
        True, False, False, False,
    ]  # fmt: skip
    assert [wants(gfx, own) for gfx in ("gfx11", "gfx1100", "gfx1101")] == [False, True, False]
    # nothing is lost: a file for all of a family without a package is an error
    lost = "torch/lib/rocblas/library/Kernels_gfx90x.hsaco"
    assert not wants("gfx1100", lost, alone=True)
    with pytest.raises(SystemExit, match="is for all of gfx9, which has no package"):
        wants("gfx942", lost, alone=True)
    host = script.Selection(parts, leave_out, None, None, {})
    assert not host.wants(shared, 7)
    assert host.parted == {("device", "gfx11"): [1, 7]}
