"""The gates that build on the reader: each passes on good trees and fails for one reason."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import gfxmake as make
import pytest
import zstandard

from assembler.progress import SilentProgress
from assembler.verify.findings import GateResult
from assembler.verify.gates import gfx, kernels
from assembler.verify.opening import find_subjects, open_tree
from assembler.verify.policy import Kernels, Policy
from assembler.verify.tree import Tree

BOTH = Policy(targets=("gfx942", "gfx950"))
ONE, TWO = make.elf(), make.elf(make.GFX950)
PAIR = [("hipv4-amdgcn-amd-amdhsa--gfx942", ONE), ("hipv4-amdgcn-amd-amdhsa--gfx950", TWO)]
FAT = make.host_elf((".hip_fatbin", make.bundle(PAIR)))
GOOD = {
    "opt/atom/lib/hsa/gfx942/k.co": ONE,
    "opt/atom/lib/hsa/gfx950/k.co": TWO,
    "opt/atom/lib/libfat.so": FAT,
    "opt/atom/lib/text.txt": b"text",
}
Check = Callable[[Tree, Policy], GateResult]


def fat(*targets: tuple[str, int]) -> bytes:
    entries = [(f"hipv4-amdgcn-amd-amdhsa--{name}", make.elf(flags)) for name, flags in targets]
    return make.host_elf((".hip_fatbin", make.bundle(entries)))


def judge(place: Path, policy: Policy, check: Check = gfx.check) -> GateResult:
    (subject,) = find_subjects(place)
    with open_tree(subject, place.parent / "scratch", SilentProgress()) as tree:
        return check(tree, policy)


def folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return root


def conda(place: Path, name: str, files: dict[str, bytes], build: str = "h1_0") -> Path:
    def packed(members: dict[str, bytes]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for path, data in members.items():
                info = tarfile.TarInfo(path)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return zstandard.compress(out.getvalue())

    index = {"name": name, "version": "1.0", "build": build, "build_number": 0, "depends": []}
    stem = f"{name}-1.0-{build}"
    path = place / f"{stem}.conda"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"conda_pkg_format_version": 2}))
        archive.writestr(f"pkg-{stem}.tar.zst", packed(files))
        archive.writestr(
            f"info-{stem}.tar.zst", packed({"info/index.json": json.dumps(index).encode()})
        )
    return path


def record(name: str, build: str, files: list[str]) -> bytes:
    return json.dumps({"name": name, "version": "1", "build": build, "files": files}).encode()


def ids(result: GateResult) -> list[str]:
    return sorted(finding.id for finding in result.findings)


def test_good_trees_pass(tmp_path: Path) -> None:
    result = judge(folder(tmp_path / "t", GOOD), BOTH)
    assert (result.verdict, result.examined, ids(result)) == ("pass", 4, [])
    assert [row["target"] for row in result.facts["targets"]] == ["gfx942", "gfx950"]


def test_no_gpu_code_is_no_failure_of_this_gate(tmp_path: Path) -> None:
    result = judge(folder(tmp_path / "t", {"a.txt": b"x"}), BOTH)
    assert (result.verdict, result.note) == ("pass", "no GPU code here")


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"opt/atom/lib/x.so": fat(("gfx90a", make.GFX90A))}, ["gfx/foreign-target"]),
        ({"opt/atom/lib/x.so": fat(("gfx942", make.GFX942))}, ["gfx/missing-target"]),
        ({"opt/atom/lib/hsa/gfx942/k.co": TWO, "opt/atom/x.co": ONE}, ["gfx/name-mismatch"]),
        ({"opt/atom/lib/hsa/gfx942/k.co": ONE[:-100], "opt/atom/x.co": ONE}, ["gfx/unreadable"]),
        ({"opt/atom/lib/hsa/gfx942/k.co": b"", "opt/atom/x.co": ONE}, ["gfx/unreadable"]),
        (
            {"opt/atom/lib/x.so": fat(("gfx942", make.GFX950), ("gfx950", make.GFX950))},
            ["gfx/id-mismatch", "gfx/missing-target"],
        ),
        ({"opt/atom/lib/x.co": make.elf(0x73F)}, ["gfx/foreign-target"]),
    ],
)  # fmt: skip
def test_each_fault_has_its_own_finding(
    tmp_path: Path, changed: dict[str, bytes], found: list[str]
) -> None:
    files = {name: data for name, data in GOOD.items() if "libfat" not in name}
    result = judge(folder(tmp_path / "t", files | changed), BOTH)
    assert ids(result) == found
    assert result.verdict == "fail"
    assert {finding.subject for finding in result.findings} == {sorted(changed)[0]}


def test_a_target_without_any_code_is_absent(tmp_path: Path) -> None:
    result = judge(folder(tmp_path / "t", {"hsa/gfx942/k.co": ONE}), BOTH)
    assert ids(result) == ["gfx/absent-target"]


def test_features_that_are_fixed_warn(tmp_path: Path) -> None:
    flags = make.GFX942 & ~0x300 | 0x300
    result = judge(folder(tmp_path / "t", {"k.co": make.elf(flags)}), Policy(targets=("gfx942",)))
    assert ids(result) == ["gfx/feature-bound"]
    assert result.verdict == "pass"


def test_generic_code_counts_for_its_family(tmp_path: Path) -> None:
    entry = ("hipv4-amdgcn-amd-amdhsa--gfx9-4-generic", make.elf(0x100055F, abi=4))
    data = make.host_elf((".hip_fatbin", make.bundle([entry])))
    result = judge(folder(tmp_path / "t", {"hsa/gfx950/x.so": data}), BOTH)
    assert ids(result) == []


def test_extra_targets_are_noted(tmp_path: Path) -> None:
    data = fat(("gfx942", make.GFX942), ("gfx950", make.GFX950), ("gfx90a", make.GFX90A))
    result = judge(folder(tmp_path / "t", {"lib.so": data}), BOTH)
    assert ids(result) == ["gfx/extra-target"]
    assert result.verdict == "pass"


@pytest.mark.parametrize(
    ("name", "data", "fits"),
    [
        ("lib/gfx942/Kernels.so-000-gfx90a-xnack+.hsaco", make.elf(0x73F), True),
        ("lib/Kernels.so-000-gfx90a.hsaco", make.elf(), False),
        ("gfx94x/k.co", ONE, True),
        ("gfx942-not/k.co", ONE, True),
        ("share/gfx942130/k.co", ONE, True),
        ("share/gfx906_60/k.co", ONE, False),
    ],
)
def test_names_of_files_and_folders(tmp_path: Path, name: str, data: bytes, fits: bool) -> None:
    result = judge(folder(tmp_path / "t", {name: data}), Policy())
    assert ids(result) == ([] if fits else ["gfx/name-mismatch"])


def test_device_packages_declare_their_target(tmp_path: Path) -> None:
    good = conda(tmp_path, "amd-aiter-device-gfx942", {"site-packages/hsa/gfx942/k.co": ONE})
    assert ids(judge(good, BOTH)) == []
    bad = conda(tmp_path, "amd-aiter-device-gfx950", {"site-packages/hsa/gfx942/k.co": ONE})
    result = judge(bad, BOTH)
    assert ids(result) == ["gfx/absent-target", "gfx/foreign-target"]


def test_an_environment_declares_targets_by_its_selector(tmp_path: Path) -> None:
    files = {
        "opt/atom/conda-meta/atom-device-1.json": record("atom-device", "gfx942_habc_0", []),
        "opt/atom/hsa/gfx942/k.co": ONE,
    }
    result = judge(folder(tmp_path / "t", files), BOTH)
    assert ids(result) == []
    assert result.facts["declared"] == ["gfx942"]
    every = {"opt/atom/conda-meta/atom-device-1.json": record("atom-device", "all_habc_0", [])}
    assert ids(judge(folder(tmp_path / "t", every), BOTH)) == ["gfx/absent-target"]


def test_empty_gpu_packages_fail(tmp_path: Path) -> None:
    empty = conda(tmp_path, "amd-aiter-device-gfx950", {"site-packages/x.py": b"pass"})
    assert ids(judge(empty, BOTH, kernels.check)) == ["kernels/none"]
    full = conda(tmp_path, "amd-aiter-device-gfx942", {"site-packages/k.co": ONE})
    result = judge(full, BOTH, kernels.check)
    assert (result.verdict, result.examined) == ("pass", 1)


def test_packages_below_their_floor_fail(tmp_path: Path) -> None:
    policy = Policy(targets=("gfx942",), kernels=Kernels(floors={"amd-aiter-device-*": 2}))
    package = conda(tmp_path, "amd-aiter-device-gfx942", {"site-packages/k.co": ONE})
    assert ids(judge(package, policy, kernels.check)) == ["kernels/below-floor"]


def test_host_packages_need_no_kernels(tmp_path: Path) -> None:
    package = conda(tmp_path, "einops", {"site-packages/x.py": b"pass"})
    result = judge(package, BOTH, kernels.check)
    assert (result.verdict, result.examined) == ("pass", 0)


def test_installed_packages_are_counted_by_their_records(tmp_path: Path) -> None:
    meta = "opt/atom/conda-meta"
    files = {
        f"{meta}/a.json": record("amd-aiter-device-gfx942", "h_0", ["hsa/gfx942/k.co"]),
        f"{meta}/b.json": record("amd-aiter-device-gfx950", "h_0", ["hsa/gfx950/none.txt"]),
        f"{meta}/broken.json": b"{",
        f"{meta}/history": b"",
        "opt/atom/hsa/gfx942/k.co": ONE,
        "opt/atom/hsa/gfx950/none.txt": b"",
    }
    result = judge(folder(tmp_path / "t", files), BOTH, kernels.check)
    assert ids(result) == ["kernels/none"]
    assert result.findings[0].subject == "amd-aiter-device-gfx950"
    assert result.facts["code_objects"] == {
        "amd-aiter-device-gfx942": 1,
        "amd-aiter-device-gfx950": 0,
    }


def test_four_faults_in_one_tree_are_four_findings(tmp_path: Path) -> None:
    """The gfx942 image of the acceptance list."""
    meta = "opt/atom/conda-meta"
    files = {
        f"{meta}/s.json": record("atom-device", "gfx942_h1_0", []),
        f"{meta}/d.json": record("other-device-gfx942", "h_0", ["lib/nothing.txt"]),
        "opt/atom/lib/libslipped.so": fat(("gfx90a", make.GFX90A)),
        "opt/atom/lib/hsa/gfx950/renamed.co": ONE,
        "opt/atom/lib/hsa/gfx942/cut.co": ONE[:200],
        "opt/atom/lib/hsa/gfx942/good.co": ONE,
        "opt/atom/lib/nothing.txt": b"",
    }
    place = folder(tmp_path / "t", files)
    found = ids(judge(place, BOTH)) + ids(judge(place, BOTH, kernels.check))
    assert found == [
        "gfx/foreign-target",
        "gfx/name-mismatch",
        "gfx/unreadable",
        "kernels/none",
    ]


def test_wheels_are_packages_too(tmp_path: Path) -> None:
    wheel = tmp_path / "amd_mori-1.0-cp312-cp312-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("mori/libmori_io.so", fat(("gfx942", make.GFX942)))
    assert ids(judge(wheel, BOTH)) == ["gfx/absent-target", "gfx/missing-target"]
    policy = Policy(kernels=Kernels(floors={"amd-mori": 2}))
    assert ids(judge(wheel, policy, kernels.check)) == ["kernels/below-floor"]


def test_old_code_objects_have_features_that_nobody_chose(tmp_path: Path) -> None:
    old = make.elf(0x3F, abi=1)
    entries = [("hip-amdgcn-amd-amdhsa-gfx90a", old)]
    data = make.host_elf((".hip_fatbin", make.bundle(entries)))
    result = judge(folder(tmp_path / "t", {"lib.so": data}), Policy(targets=("gfx90a",)))
    assert ids(result) == []


def test_feature_mismatches_between_id_and_header(tmp_path: Path) -> None:
    entries = [("hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-", make.elf(0x73F))]
    data = make.host_elf((".hip_fatbin", make.bundle(entries)))
    result = judge(folder(tmp_path / "t", {"lib.so": data}), Policy(targets=("gfx90a",)))
    assert ids(result) == ["gfx/feature-bound", "gfx/id-mismatch"]


def test_what_a_family_shares_is_a_note_for_its_members(tmp_path: Path) -> None:
    shared = {"lib/aotriton.images/amd-gfx120x/k.hsaco": make.elf(make.GFX1201)}
    member = folder(tmp_path / "a", {**shared, "lib/hsa/gfx1200/k.co": make.elf(0x48)})
    result = judge(member, Policy(targets=("gfx1200",)))
    assert (result.verdict, ids(result)) == ("pass", ["gfx/extra-target"])
    stranger = folder(tmp_path / "b", {**shared, "lib/hsa/gfx942/k.co": ONE})
    result = judge(stranger, Policy(targets=("gfx942",)))
    assert (result.verdict, ids(result)) == ("fail", ["gfx/foreign-target"])
