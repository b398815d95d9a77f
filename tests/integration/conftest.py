"""Fixtures shared by integration tests: what builds a Dockerfile, made once a session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.container_builder import ContainerBuilder, run

SUITE, PYTHON = "bookworm", "3.11"
PACKAGES = "python3,python3-venv,git,ca-certificates"


@pytest.fixture(scope="session")
def container_builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerBuilder]:
    """podman with a builder image and wheels for it; a skip says what is missing.

    The image is a small Debian from the machine's apt sources, or the one that the variable
    ASSEMBLER_TEST_BUILDER names; pip downloads what it installs in a container beforehand.
    """
    program = shutil.which("podman")
    if program is None:
        pytest.skip("no podman on this machine")
    done = subprocess.run([program, "info"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"podman does not work here: {done.stderr.strip()[-200:]}")
    folder = tmp_path_factory.mktemp("container-builder")
    wheels = _wheels(folder / "wheels")
    given = os.environ.get("ASSEMBLER_TEST_BUILDER")
    if given:
        yield ContainerBuilder(program, given, wheels)
        return
    tar = _debian(folder / "base.tar")
    name = f"localhost/assembler-builder-{os.getpid()}:test"
    run(program, "import", tar, name)
    tar.unlink()
    yield ContainerBuilder(program, name, wheels)
    run(program, "rmi", "--force", name)


def _debian(tar: Path) -> Path:
    program = shutil.which("mmdebstrap")
    if program is None or os.getuid() != 0:
        pytest.skip("no builder image: mmdebstrap is missing, or this user is not root")
    done = subprocess.run(
        [program, "--variant=apt", f"--include={PACKAGES}", SUITE, tar],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"mmdebstrap cannot reach {SUITE}: {done.stderr.strip()[-200:]}")
    return tar


def _wheels(folder: Path) -> Path:
    """Download the project's dependencies for the container's Python."""
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
