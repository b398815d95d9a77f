"""The whole rocm profile, ROCm 7.2: channel, lock, and images for each target and for both."""

from __future__ import annotations

import json
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard
from packaging.version import Version

from assembler.build.normal import read_stamp
from assembler.build.subjects import virtual_packages
from assembler.channel.index import check, read_records
from assembler.verify.gfx import CodeObject, inventory
from assembler.workspace import Workspace
from tests.conftest import run_assembler
from tests.integration.rocm.conftest import Project, sha256
from tests.integration.rocm.standins import FAT, Code

pytestmark = pytest.mark.slow
TARGETS = ("gfx942", "gfx950")
TORCH = "lib/python3.12/site-packages/torch"


def run(workspace: Workspace, *arguments: str) -> dict[str, Any]:
    """Run a command on the rocm profile and return its JSON."""
    done = run_assembler(
        arguments[0], "--profile", "rocm", "--json", *arguments[1:], cwd=workspace.root
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def built(make_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The project with its channel built."""
    workspace = make_project(tmp_path_factory.mktemp("rocm") / "project")
    result = run(workspace, "build", "--offline", "-j", "2")
    assert len(result["built"]) == 19
    # what fat wheels bring for targets that nobody asked for
    assert set(result["unasked_targets"]) == {*FAT, "gfx12"} - set(TARGETS)
    assert all(size > 0 for size in result["unasked_targets"].values())
    return workspace


@pytest.fixture(scope="module")
def locked(built: Workspace) -> Workspace:
    """The same with a lock, and with what came from the other channel copied into this one."""
    assert run(built, "lock")["gfx_targets"] == list(TARGETS)
    run(built, "mirror")
    return built


def package(workspace: Workspace, name: str) -> Path:
    """Return the file of the only package of that name."""
    [record] = [one for one in read_records(workspace.channel) if one.name == name]
    return workspace.channel / record.path


def digests(path: Path) -> dict[str, str]:
    """Return path -> SHA-256 (links: nothing) of a package's files."""
    with zipfile.ZipFile(path) as archive:
        info = next(name for name in archive.namelist() if name.startswith("info-"))
        plain = zstandard.ZstdDecompressor().stream_reader(archive.open(info))
        with tarfile.open(fileobj=plain, mode="r|") as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.name == "info/paths.json" else None
                if stream is not None:
                    paths = json.loads(stream.read())["paths"]
                    return {one["_path"]: one.get("sha256", "") for one in paths}
    raise AssertionError(path)


def names(path: Path) -> set[str]:
    """Return the files of a package."""
    return set(digests(path))


def environment(layout: Path, digest: str) -> list[str]:
    """Return an image's environment."""

    def blob(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((layout / "blobs" / name.replace(":", "/")).read_text())
        return found

    manifest = blob(digest)
    found: list[str] = blob(manifest["config"]["digest"])["config"]["Env"]
    return found


def processors(path: Path) -> Counter[str]:
    """Count a package's code objects by target; damage is a failure."""
    found: Counter[str] = Counter()
    for item in inventory(path):
        assert isinstance(item, CodeObject), item
        found[item.processor] += 1
    return found


def test_the_channel_is_whole_and_a_second_build_does_nothing(built: Workspace) -> None:
    assert check(built.channel) == ()
    again = run(built, "build", "--offline")
    assert again["built"] == []
    assert len(again["up_to_date"]) == 19


@pytest.mark.parametrize("target", TARGETS)
def test_device_packages_hold_their_own_target_alone(built: Workspace, target: str) -> None:
    torch = processors(package(built, f"pytorch-device-{target}"))
    # rocBLAS has a library and kernels; hipBLASLt, hipSPARSELt and AOTriton one file each
    assert torch == {target: 5}
    assert processors(package(built, f"amd-aiter-device-{target}")) == {target: 2}


def test_host_packages_hold_no_device_files_and_fat_libraries_stay_as_they_were(
    built: Workspace, code: Code
) -> None:
    host = names(package(built, "pytorch"))
    assert not [path for path in host if "gfx" in path]
    assert f"{TORCH}/lib/rocblas/library/TensileManifest.txt" in host
    assert processors(package(built, "pytorch")) == dict.fromkeys(FAT, 1)
    found = digests(package(built, "pytorch"))[f"{TORCH}/lib/libtorch_hip.so"]
    assert found == sha256(code.library)
    assert processors(package(built, "amd-aiter")) == {}


def test_databases_follow_their_target_though_their_names_go_on(built: Workspace) -> None:
    device = names(package(built, "pytorch-device-gfx942"))
    assert f"{TORCH}/share/miopen/db/gfx942130.HIP.fdb.txt" in device
    assert not [path for path in device if "gfx950" in path or "gfx90a" in path]


def test_packages_of_two_targets_share_no_file(built: Workspace) -> None:
    for stem in ("pytorch-device", "amd-aiter-device"):
        one, other = (names(package(built, f"{stem}-{target}")) for target in TARGETS)
        assert one
        assert not one & other


def test_what_was_left_out_is_told_with_its_rule(built: Workspace) -> None:
    stamp = read_stamp(package(built, "pytorch"))
    assert {entry["rule"] for entry in stamp["left_out"]} == {
        "protoc", "static-libraries", "tests"
    }  # fmt: skip
    parted = {
        entry["target"]: entry["files"] for entry in stamp["parts"] if entry["part"] == "device"
    }
    # what nobody asked for is counted too: it is in no package
    assert parted == {**dict.fromkeys(FAT, 7), "gfx12": 1}
    mori = read_stamp(package(built, "amd-mori"))
    assert [entry["rule"] for entry in mori["left_out"]] == ["umbp-servers"]


def test_one_provider_of_hip_and_links_that_lead_to_it(built: Workspace) -> None:
    mori = names(package(built, "amd-mori"))
    folder = "lib/python3.12/site-packages/mori"
    assert {f"{folder}/libamdhip64.so.7", f"{folder}/libhsa-runtime64.so.1"} <= mori
    providers = [
        record.name
        for record in read_records(built.channel)
        if any(path.endswith("/libamdhip64.so") for path in names(built.channel / record.path))
    ]
    assert providers == ["pytorch"]


def test_atoms_declared_requirements_are_conda_ones(built: Workspace) -> None:
    [atom] = [one for one in read_records(built.channel) if one.name == "atom"]
    assert {"transformers ==5.2.0", "pyzmq", "fastapi <0.137,>=0.115", "atom-stack"} <= set(
        atom.depends
    )


def test_images_for_one_target_the_other_and_both_share_their_host_layers(
    locked: Workspace,
) -> None:
    images = {
        image["tag"]: image
        for image in run(locked, "image", "--gfx", "gfx942", "--gfx", "gfx950", "--gfx", "all")[
            "images"
        ]
    }
    assert set(images) == {"gfx942", "gfx950", "all"}
    assert len({image["digest"] for image in images.values()}) == 3
    for image in images.values():
        # as amd-aiter was built: attention goes to Triton, nothing wants composable_kernel
        assert "ENABLE_CK=0" in environment(Path(image["layout"]), image["digest"])
    layers = {
        tag: {
            layer["digest"]: set(layer["packages"])
            for layer in image["layers"]
            if layer["packages"]
        }
        for tag, image in images.items()
    }
    for tag, expected in (("gfx942", {"gfx942"}), ("gfx950", {"gfx950"}), ("all", set(TARGETS))):
        packages = set().union(*layers[tag].values())
        here = {name.rpartition("-")[2] for name in packages if "-device-" in name}
        assert here == expected, tag
        assert {"pytorch", "triton", "flydsl", "amd-aiter", "atom"} <= packages
    shared = set.intersection(*(set(found) for found in layers.values()))
    host = set().union(*(layers["all"][digest] for digest in shared))
    assert {"pytorch", "torchvision", "triton", "flydsl", "amd-aiter", "python"} <= host
    assert not [name for name in host if "-device" in name]


def test_the_tests_that_the_packages_carry_pass(built: Workspace) -> None:
    """What they need and this machine has not is told; nothing but that is without a pass."""
    report = run(built, "test", "-j", "2")
    trials = {Path(one["path"]).name.rsplit("-", 2)[0]: one for one in report["packages"]}
    carry = {name for name, trial in trials.items() if trial["tests"]}
    # the others' contents were checked as they were built, or they have none
    assert set(trials) - carry == {"amd-aiter-sources", "pytorch-headers", "rocm-release"}
    assert report["failed"] == report["untested"] == []
    glibc = Version(virtual_packages()["__glibc"])
    without = {"amd-mori"} if glibc < Version("2.39") else set()
    assert {name for name in carry if trials[name]["outcome"] == "not run"} == without
    assert (trials["atom"]["passed"], trials["atom"]["not_run"]) == (1, 1)
    for target in TARGETS:
        device = trials[f"pytorch-device-{target}"]
        assert (device["passed"], device["not_run"]) == (1, 1)
        assert device["words"] == [f"this machine has no {target} GPU that PyTorch sees"]
        assert trials[f"amd-aiter-device-{target}"]["passed"] == 2
        log = Path(trials[f"amd-aiter-device-{target}"]["log"]).read_text()
        assert f"2 pieces of code for {target}, and no other" in log
        assert f"bytes of code for {target}" in log


def test_the_lock_names_no_foreign_channel_once_mirrored(locked: Workspace) -> None:
    assert run(locked, "lock", "--check")
    assert {"python", "numpy"} <= {record.name for record in read_records(locked.channel)}
