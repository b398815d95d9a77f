"""Every package of the rocm profile on every axis, rendered offline before anything is fetched.

``python -m tests.unit.recipes.test_recipes_matrix`` writes the golden file anew.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from assembler.build.catalogue import catalogue, rendered, untouched
from assembler.errors import ConfigError
from assembler.sources.pins import read_pins
from assembler.variants import read_axes
from assembler.workspace import Workspace
from tests.conftest import ROOT, run_assembler

GOLDEN = Path(__file__).with_name("matrix.txt")
CHOICES: tuple[Mapping[str, str], ...] = (
    {},
    {"rocm": "10.0"},
    {"aiter_build": "prebuilt"},
    {"aiter_build": "ck", "mori_build": "source", "triton_kernels": "with"},
)


def matrix(folder: Path) -> str:
    """Return the packages of every choice with what they are built with and need."""
    workspace = untouched(Workspace.at(ROOT), folder)
    lines: list[str] = []
    for choice in CHOICES:
        profile = workspace.stack().select("rocm").with_variants(choice)
        lines.append(
            f"# {profile.name}: {', '.join(f'{k}={v}' for k, v in profile.choose.items())}"
        )
        _stack, plan = rendered(workspace, profile)
        for item in plan.packages:
            one = item.rendered
            build = re.sub(r"h[0-9a-f]{7}", "h", one.build)
            lines.append(f"{one.subdir}/{one.name}-{one.version}-{build}")
            lines += [f"    host {name}" for name in one.host]
            lines += [f"    run  {line}" for line in one.run]
    return "\n".join(lines) + "\n"


def test_the_matrix_is_the_golden_one(tmp_path: Path) -> None:
    assert matrix(tmp_path) == GOLDEN.read_text(encoding="utf-8")


def test_the_catalogue_is_not_stale() -> None:
    workspace = Workspace.at(ROOT)
    assert (workspace.recipes / "README.md").read_text(encoding="utf-8") == catalogue(workspace)


def test_list_needs_no_network_and_nothing_fetched(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    shutil.copy(ROOT / "stack.toml", tmp_path)
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    done = run_assembler(
        "build", "--profile", "rocm", "--list", "--json", cwd=tmp_path, env=nowhere
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["packages"]
    assert len(rows) == 19
    torch = next(row for row in rows if row["package"].startswith("linux-64/pytorch-2"))
    assert torch["state"] == "lacking"
    assert "is not fetched; run `assembler fetch`" in torch["lacks"]
    newer = run_assembler(
        "build", "--profile", "rocm", "--variant", "rocm=10.0", "--list", cwd=tmp_path, env=nowhere
    )
    assert "torch 2.11.0+rocm10.0.0 is not pinned; run `assembler pin`" in newer.stdout
    assert not (tmp_path / "channel").exists()


@pytest.mark.parametrize("choice", CHOICES[:2])
def test_a_row_of_the_table_and_its_pins_say_the_same(choice: Mapping[str, str]) -> None:
    workspace = Workspace.at(ROOT)
    profile = workspace.stack().select("rocm").with_variants(choice)
    axes = read_axes(workspace.variant_files(profile)).choose(profile.choose)
    pins = {
        pin.name: pin.version
        for group in read_pins(workspace, profile, unpinned=True).values()
        for pin in group
    }
    for name in ("torch", "torchvision", "torchaudio", "flydsl", "amd-aiter", "amd-mori"):
        assert axes.values[f"{name.replace('-', '_')}_version"] == (pins[name],)
    triton = "triton-rocm" if profile.choose["rocm"] == "7.2" else "triton"
    assert axes.values["triton_version"] == (pins[triton],)


def test_a_pin_that_leaves_its_row_is_refused(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    shutil.copy(ROOT / "stack.toml", tmp_path)
    workspace = Workspace.at(tmp_path)
    file = workspace.recipes / "rocm" / "pytorch" / "sources.toml"
    file.write_text(file.read_text().replace('version = "2.14.1+rocm7.2"', 'version = "2.14.0"'))
    with pytest.raises(ConfigError, match=r"torch_version 2\.14\.1\+rocm7\.2 and its pin says"):
        rendered(workspace, workspace.stack().select("rocm"))


def test_an_axis_that_is_not_offered_and_a_value_that_is_not_there(tmp_path: Path) -> None:
    profile = Workspace.at(ROOT).stack().select("rocm")
    with pytest.raises(ConfigError, match="the axes it offers are rocm, aiter_build"):
        profile.with_variants({"cuda": "12"})
    other = profile.with_variants({"rocm": "9.9"})
    with pytest.raises(ConfigError, match=r"choose among 7\.2, 10\.0"):
        rendered(dataclasses.replace(Workspace.at(ROOT), build=tmp_path), other)


def test_other_choices_are_stacks_of_their_own() -> None:
    profile = Workspace.at(ROOT).stack().select("rocm")
    other = profile.with_variants({"rocm": "10.0", "mori_build": "source"})
    assert (other.name, other.image.name) == ("rocm-10.0-source", "atom-rocm-10.0-source")
    assert other.pin_table == "rocm"
    assert profile.with_variants({"rocm": "7.2"}) == profile


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        GOLDEN.write_text(matrix(Path(scratch)), encoding="utf-8")
