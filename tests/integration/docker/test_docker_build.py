"""docker/Dockerfile.channel run for real: the tiny stack, in containers made on the spot.

The builder image is a small Debian from the machine's apt sources (or the one that the variable
ASSEMBLER_TEST_BUILDER names), and pip finds what it installs in a folder that is filled here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from assembler.build.builder import Builder
from assembler.channel.index import check, read_records
from assembler.progress import SilentProgress
from assembler.sources.fetch import fetch
from assembler.workspace import Workspace
from tests.conftest import ROOT, TINY

pytestmark = [pytest.mark.engine, pytest.mark.slow]
SUITE, PYTHON = "bookworm", "3.11"
PACKAGES = "python3,python3-venv,git,ca-certificates"


def run(*command: str | Path, timeout: float = 600) -> str:
    """Run a program and return its output; a skip when it cannot be run here."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{command[0]}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def podman() -> str:
    """The engine, if it builds anything at all here."""
    program = shutil.which("podman")
    if program is None:
        pytest.skip("no podman on this machine")
    done = subprocess.run([program, "info"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"podman does not work here: {done.stderr.strip()[-200:]}")
    return program


@pytest.fixture(scope="module")
def builder_image(podman: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with Python and git."""
    given = os.environ.get("ASSEMBLER_TEST_BUILDER")
    if given:
        yield given
        return
    program = shutil.which("mmdebstrap")
    if program is None or os.getuid() != 0:
        pytest.skip("no builder image: mmdebstrap is missing, or this user is not root")
    tar = tmp_path_factory.mktemp("builder") / "base.tar"
    done = subprocess.run(
        [program, "--variant=apt", f"--include={PACKAGES}", SUITE, tar],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"mmdebstrap cannot reach {SUITE}: {done.stderr.strip()[-200:]}")
    name = f"localhost/assembler-builder-{os.getpid()}:test"
    run(podman, "import", tar, name)
    yield name
    run(podman, "rmi", "--force", name)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip installs in the container: the project's dependencies for its Python."""
    folder = tmp_path_factory.mktemp("wheels")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"], "wheel"]
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
            "--only-binary=:all:", "--python-version", PYTHON,
            "--platform", "manylinux_2_34_x86_64", "--platform", "manylinux_2_28_x86_64",
            "--platform", "manylinux_2_17_x86_64", "--platform", "manylinux2014_x86_64",
            "--constraint", ROOT / "constraints.txt", "--dest", folder, *wanted,
        ],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"pip cannot bring the dependencies: {done.stderr.strip()[-200:]}")
    return folder


def test_the_channel_of_a_container_is_the_machines_own(
    podman: str, builder_image: str, wheels: Path, tmp_path: Path
) -> None:
    context = tmp_path / "context"
    shutil.copytree(TINY, context)
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, context)
    shutil.copytree(
        ROOT / "assembler", context / "assembler", ignore=shutil.ignore_patterns("__pycache__")
    )
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    targets = ("gfx942", "gfx1201")
    run(
        podman, "build", "--network=none", "--layers=false", "--force-rm",
        "--volume", f"{wheels}:/wheels:ro", "--secret", f"id=pip.conf,src={settings}",
        "--file", ROOT / "docker" / "Dockerfile.channel",
        "--build-arg", f"BUILDER={builder_image}", "--build-arg", "PROFILE=tiny",
        "--build-arg", f"GFX_TARGETS={' '.join(targets)}",
        "--build-arg", "BUDGET=--cpus 2 --memory 4",
        "--output", f"type=local,dest={tmp_path / 'channel'}", context,
    )  # fmt: skip

    inside = Workspace.at(tmp_path, channel=tmp_path / "channel")
    assert check(inside.channel) == ()
    names = {record.name for record in read_records(inside.channel)}
    assert {f"tiny-device-{target}" for target in targets} <= names
    assert "tiny-device-gfx950" not in names

    here = tmp_path / "here"
    shutil.copytree(TINY, here)
    (here / "recipes" / "variants.yaml").write_text(json.dumps({"gfx_target": targets}))
    workspace = Workspace.at(here)
    profile = workspace.stack().select("tiny")
    fetch(workspace, profile, SilentProgress())
    Builder(workspace, profile, SilentProgress(), jobs=2).run()
    assert {
        (record.path, record.sha256) for record in read_records(inside.channel)
    } == {(record.path, record.sha256) for record in read_records(workspace.channel)}  # fmt: skip
