"""A new GPU target is one line; and plain rattler-build builds the recipes too."""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from assembler.channel.index import read_records
from assembler.digest import sha256_file
from assembler.workspace import Workspace
from tests.conftest import ROOT, run_assembler
from tests.integration.rocm.conftest import Project
from tests.integration.rocm.test_rocm_channel import digests, package, processors

pytestmark = pytest.mark.slow
NEW, SIBLING, FAMILY = "gfx1201", "gfx1200", "gfx12"
ROCM = ("--profile", "rocm", "--offline", "-j", "2")


@pytest.fixture(scope="module")
def workspace(make_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The project, built for the targets that it lists."""
    project = make_project(tmp_path_factory.mktemp("targets") / "project")
    done = run_assembler("build", *ROCM, cwd=project.root)
    assert done.returncode == 0, done.stderr
    return project


def test_a_new_target_is_a_one_line_change(workspace: Workspace) -> None:
    before = {path: sha256_file(path) for path in workspace.channel.glob("*/*.conda")}
    variants = workspace.recipes / "variants.yaml"
    old = variants.read_text()
    variants.write_text(f"{old}  - {NEW}\n")
    changed = [
        line
        for line in difflib.ndiff(old.splitlines(), variants.read_text().splitlines())
        if line[:1] in "+-"
    ]
    assert changed == [f"+   - {NEW}"]

    done = run_assembler("build", *ROCM, "--json", cwd=workspace.root)
    assert done.returncode == 0, done.stderr
    built = {Path(one["path"]).name.rsplit("-", 2)[0] for one in json.loads(done.stdout)["built"]}
    # the selector's build for all targets names the new packages, so it is another one
    assert built == {
        f"pytorch-device-{NEW}", f"pytorch-device-family-{FAMILY}", f"amd-aiter-device-{NEW}",
        "atom-device",
    }  # fmt: skip
    assert processors(package(workspace, f"pytorch-device-{NEW}")) == {NEW: 5}
    # AITER's repository has nothing for it: its operators there are Triton's
    assert processors(package(workspace, f"amd-aiter-device-{NEW}")) == {}
    everything = next(
        one
        for one in read_records(workspace.channel)
        if one.name == "atom-device" and one.build.startswith("all_")
    )
    assert f"pytorch-device-{NEW}" in everything.depends
    for path, digest in before.items():
        if "atom-device-1.0-all" not in path.name:
            assert sha256_file(path) == digest


def test_targets_of_one_family_are_installed_side_by_side(
    workspace: Workspace, tmp_path: Path
) -> None:
    """What the family's members share is in one package that each of them needs."""
    variants = workspace.recipes / "variants.yaml"
    variants.write_text(f"{variants.read_text()}  - {SIBLING}\n")
    for command in ("build", "lock", "mirror"):
        done = run_assembler(
            command, *(ROCM if command == "build" else ROCM[:2]), cwd=workspace.root
        )
        assert done.returncode == 0, done.stderr
    shared = digests(package(workspace, f"pytorch-device-family-{FAMILY}"))
    [image] = shared
    assert "amd-gfx120x/" in image
    assert processors(package(workspace, f"pytorch-device-family-{FAMILY}")) == {NEW: 1}
    for target in (NEW, SIBLING):
        [device] = [
            record
            for record in read_records(workspace.channel)
            if record.name == f"pytorch-device-{target}"
        ]
        assert image not in digests(workspace.channel / device.path)
        assert f"pytorch-device-family-{FAMILY} ==2.14.1 rocm72_*" in device.depends
    # every file of every package is checked, and that no two packages own one
    prefix = tmp_path / "environment"
    done = run_assembler("install", *ROCM[:2], "--verify", "-p", prefix, cwd=workspace.root)
    assert done.returncode == 0, done.stderr
    assert (prefix / image).is_file()
    meta = {path.name.rsplit("-", 2)[0] for path in (prefix / "conda-meta").glob("*.json")}
    assert {f"pytorch-device-{NEW}", f"pytorch-device-{SIBLING}"} <= meta
    names = ("pytorch-device-*", "atom-device")
    done = run_assembler("test", *ROCM[:2], *names, "--json", cwd=workspace.root)
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)["packages"]
    assert len(trials) == 10  # four targets, the family, a selector for each target and for all
    assert {trial["outcome"] for trial in trials} == {"passed"}


PLAIN = """
import os, sys
from pathlib import Path
import yaml
from rattler_build import Stage0Recipe, ToolConfiguration, VariantConfig

recipe, output, *files = sys.argv[1:]
axes = {}
for file in files:
    data = yaml.safe_load(Path(file).read_text())
    axes |= {key: [str(value) for value in values] for key, values in data.items()
             if key != "zip_keys"}
for variant in Stage0Recipe.from_file(recipe).render(VariantConfig(axes)):
    variant.run_build(output_dir=Path(output), channels=[], no_build_id=True,
                      tool_config=ToolConfiguration(test_strategy="skip"))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("name", ["rocm/pytorch", "flydsl"])
def test_plain_rattler_build_builds_the_recipes_after_fetch(
    workspace: Workspace, tmp_path: Path, name: str
) -> None:
    """Nothing of ours stands between the recipe and rattler-build; the files are the same."""
    folder = workspace.build / "sources" / "rocm"
    files = [workspace.recipes / "variants.yaml", folder / "variants.yaml"]
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, workspace.recipes / name / "recipe.yaml", tmp_path, *files],
        cwd=tmp_path,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = {path.name.rsplit("-", 2)[0]: path for path in tmp_path.glob("*/*.conda")}
    expected = {"flydsl": {"flydsl"}}.get(name) or {
        "pytorch", "pytorch-headers", "pytorch-device-gfx942", "pytorch-device-gfx950",
    }  # fmt: skip
    assert expected <= set(made)
    for one in expected:
        assert digests(made[one]) == digests(package(workspace, one))
