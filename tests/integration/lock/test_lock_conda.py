"""A real conda takes what is written here, where there is one; package indexes have none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from assembler.lock.files import read_lock
from assembler.lock.make import update_lock
from assembler.lock.model import Lock
from assembler.progress import SilentProgress
from tests import data_stack

CONDA = shutil.which("conda")
pytestmark = pytest.mark.skipif(
    CONDA is None, reason="there is no conda on PATH (PyPI, npm and Debian have none)"
)


@pytest.fixture(params=["place", "my place", "a+b"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Lock, Path, Path]:
    """A lock, its folder, and its channel, moved after it was locked."""
    project = data_stack.workspace(tmp_path / "project")
    profile = project.stack().select(None)
    update_lock(project, profile, SilentProgress())
    folder = project.lock_folder(profile)
    channel = tmp_path / request.param
    project.channel.rename(channel)
    return read_lock(folder), folder, channel


def run(*command: str | Path, channel: Path, scratch: Path) -> None:
    home = scratch / "home"
    home.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "ATOM_CHANNEL": str(channel),
        "CONDA_PKGS_DIRS": str(scratch / "pkgs"),
        "CONDARC": os.devnull,
        "CONDA_OVERRIDE_GLIBC": "2.36",
        "HOME": str(home),
    }
    done = subprocess.run(
        list(map(str, command)),
        env=environment,
        cwd=scratch,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def installed(prefix: Path) -> set[str]:
    return {path.name for path in (prefix / "conda-meta").glob("*.json")}


def expected(lock: Lock) -> set[str]:
    return {f"{p.name}-{p.version}-{p.build}.json" for p in lock.packages}


def test_conda_installs_explicit_txt(site: tuple[Lock, Path, Path], tmp_path: Path) -> None:
    lock, folder, channel = site
    assert CONDA
    run(CONDA, "create", "-y", "-q", "-p", tmp_path / "env", "--offline", "--file",
        folder / "explicit.txt", channel=channel, scratch=tmp_path)  # fmt: skip
    assert installed(tmp_path / "env") == expected(lock)


def test_conda_lock_installs_conda_lock_yml(site: tuple[Lock, Path, Path], tmp_path: Path) -> None:
    lock, folder, channel = site
    assert CONDA
    run(sys.executable, "-m", "conda_lock", "install", "--conda", CONDA, "-p", tmp_path / "env",
        folder / "conda-lock.yml", channel=channel, scratch=tmp_path)  # fmt: skip
    assert installed(tmp_path / "env") == expected(lock)


def test_conda_installs_from_the_channel(site: tuple[Lock, Path, Path], tmp_path: Path) -> None:
    lock, _, channel = site
    assert CONDA
    run(CONDA, "create", "-y", "-q", "-p", tmp_path / "env", "-c", f"./{channel.name}",
        "--override-channels", "atom-stack", channel=channel, scratch=tmp_path)  # fmt: skip
    assert installed(tmp_path / "env") == expected(lock)
