"""AITER's compiled modules, on a machine that looks like a ROCm node to the builder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assembler.channel.index import read_records
from assembler.workspace import Workspace
from tests.conftest import run_assembler
from tests.integration.gfx.conftest import Build
from tests.integration.rocm.conftest import Project
from tests.integration.rocm.test_rocm_channel import digests, package, processors

pytestmark = pytest.mark.slow
TARGETS = ("gfx942", "gfx950")
NODE = ("--profile", "rocm", "--variant", "aiter_build=prebuilt", "--offline")


@pytest.fixture(scope="module")
def node(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ROCm root: a version, the programs' names, and what their compiler would have made."""
    root = tmp_path_factory.mktemp("rocm-root")
    (root / ".info").mkdir()
    (root / ".info" / "version").write_text("7.2.0\n")
    (root / "bin").mkdir()
    for name in ("hipcc", "hipconfig", "rocminfo"):
        program = root / "bin" / name
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
    (root / "modules").mkdir()
    for target in TARGETS:
        module = build("shared", (target,), ("module",))
        (root / "modules" / f"{target}.so").write_bytes(module.read_bytes())
    return root


@pytest.fixture(scope="module")
def built(make_project: Project, node: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The project, built there."""
    project = make_project(tmp_path_factory.mktemp("node") / "project")
    done = run_assembler("build", *NODE, cwd=project.root, env={"ROCM_HOME": str(node)})
    assert done.returncode == 0, done.stderr
    return project


def test_without_a_rocm_root_it_fails_before_it_starts_and_the_rest_goes_on(
    make_project: Project, tmp_path: Path
) -> None:
    project = make_project(tmp_path / "project")
    nothing = {"ROCM_HOME": "", "ROCM_PATH": ""}
    done = run_assembler("build", *NODE, cwd=project.root, env=nothing)
    assert done.returncode == 14
    assert "hipcc, hipconfig, rocminfo on PATH and no ROCm root" in done.stderr
    assert not list(project.channel.glob("*/*.conda"))
    rest = run_assembler("build", *NODE, "--keep-going", "-j", "2", cwd=project.root, env=nothing)
    assert rest.returncode == 6
    names = {record.name for record in read_records(project.channel)}
    assert {"pytorch", "pytorch-device-gfx942", "triton", "flydsl", "atom"} <= names
    assert not [name for name in names if name.startswith("amd-aiter")]


def test_compiled_modules_lie_in_a_folder_of_their_target(built: Workspace) -> None:
    files = {}
    for target in TARGETS:
        device = package(built, f"amd-aiter-device-{target}")
        # two code objects of the repository, and one in the module
        assert processors(device) == {target: 3}
        files[target] = set(digests(device))
        assert f"lib/aiter/{target}/module_aiter_core.so" in files[target]
        assert f"lib/aiter/{target}/build/.keep" in files[target]
    assert not files["gfx942"] & files["gfx950"]
    host = digests(package(built, "amd-aiter"))
    assert not [path for path in host if path.endswith(".so")]
    assert "etc/conda/env_vars.d/amd-aiter.json" in host
    [atom_stack] = [one for one in read_records(built.channel) if one.name == "atom-stack"]
    assert "amd-aiter ==0.1.20.post1 rocm72_prebuilt_*" in atom_stack.depends


def test_the_tests_of_compiled_packages_pass_as_far_as_a_machine_without_gpu_goes(
    built: Workspace,
) -> None:
    done = run_assembler("test", *NODE[:-1], "amd-aiter*", "--json", cwd=built.root)
    assert done.returncode == 0, done.stderr
    outcomes = {
        Path(one["path"]).name.rsplit("-", 2)[0]: (one["outcome"], one["passed"])
        for one in json.loads(done.stdout)["packages"]
    }
    assert outcomes == {
        "amd-aiter": ("passed", 2),
        "amd-aiter-sources": ("none", 0),
        **{f"amd-aiter-device-{target}": ("passed", 2) for target in TARGETS},
    }


def test_the_module_folder_is_named_by_the_gpu_that_runs(built: Workspace) -> None:
    """What an image bakes in, after the prefix was put in."""
    locked = run_assembler("lock", *NODE[:-1], cwd=built.root)
    assert locked.returncode == 0, locked.stderr
    mirrored = run_assembler("mirror", *NODE[:-1], cwd=built.root)
    assert mirrored.returncode == 0, mirrored.stderr
    done = run_assembler("image", *NODE[:-1], "--json", cwd=built.root)
    assert done.returncode == 0, done.stderr
    [image] = json.loads(done.stdout)["images"]
    blobs = Path(image["layout"]) / "blobs"
    assert image["name"] == "atom-rocm-prebuilt"
    manifest = json.loads((blobs / image["digest"].replace(":", "/")).read_text())
    config = json.loads((blobs / manifest["config"]["digest"].replace(":", "/")).read_text())
    assert {"AITER_JIT_DIR=/opt/atom/lib/aiter/{gfx}", "ENABLE_CK=0"} <= set(
        config["config"]["Env"]
    )
