"""An exported folder is enough: everything works from it in a namespace without any network."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from assembler.workspace import Workspace
from tests.conftest import run_assembler


def test_install_image_and_verify_from_an_exported_folder(tiny: Workspace, tmp_path: Path) -> None:
    probe = ["unshare", "--map-root-user", "--net", "true"]
    if shutil.which("unshare") is None or subprocess.run(probe, check=False).returncode != 0:
        pytest.skip("no network namespaces on this machine")
    made = run_assembler("clean-image", "-q", "--json", cwd=tiny.root)
    digest = json.loads(made.stdout)["image"]["digest"]
    stick = tmp_path / "usb stick"
    assert run_assembler("mirror", "-q", "--export", stick, cwd=tiny.root).returncode == 0
    tiny.root.rename(tmp_path / "gone")

    def offline(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["unshare", "--map-root-user", "--net", sys.executable, "-m", "assembler",
             *map(str, arguments)],
            cwd=stick, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    assert offline("lock", "--check", "-q").returncode == 0
    installed = offline("install", "-q", "-p", tmp_path / "env", "--verify")
    assert installed.returncode == 0, installed.stderr
    assert (tmp_path / "env" / "bin" / "tiny").is_file()
    image = offline("image", "-q", "--json")
    assert image.returncode == 0, image.stderr
    assert json.loads(image.stdout)["images"][0]["digest"] == digest
    verified = offline("verify", "-q", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
