"""What is odd about the process's surroundings is a sentence or no matter at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assembler.cli.main import run
from assembler.sources import given
from assembler.verify.session import home_folder, request_for
from assembler.workspace import Workspace
from tests.conftest import run_assembler


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id without an account, and no HOME."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)


def test_a_user_without_home_and_account(tiny: Workspace, nobody: None) -> None:
    assert home_folder() == ()
    request = request_for(tiny, tiny.stack().select(None))
    assert request.policy is not None
    assert run(["build", "--project", str(tiny.root), "--source", "atom=~/x"]) == 3


def test_a_home_of_nobody_is_a_sentence(
    tiny: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "atom=~no-such-user/x"
    assert run(["clean-image", "--project", str(tiny.root), "--source", source]) == 3
    assert "the home of nobody" in capsys.readouterr().err
    assert not (tiny.build / given.GIVEN_FILE).exists()


def test_a_current_folder_that_is_gone(tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    program = "import os, sys; os.rmdir(os.getcwd()); from assembler.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "lock", "--check", "--json"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 15
    assert "current folder is not there any more" in json.loads(done.stdout)["error"]["saw"]


@pytest.mark.parametrize("arguments", [("build", "--list", "--json"), ("doctor", "--help")])
def test_surroundings_that_are_no_matter(tiny: Workspace, arguments: tuple[str, ...]) -> None:
    odd = {
        "HOME": "/nonexistent",
        "TMPDIR": "/nonexistent",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "COLUMNS": "20",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "TZ": "Asia/Kathmandu",
    }
    done = run_assembler(*arguments, cwd=tiny.root, env=odd)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_a_result_that_cannot_be_written_is_a_sentence(tiny: Workspace) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "assembler", "channel", "url", "--json"],
            cwd=tiny.root,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 12
    assert len(done.stderr.splitlines()) == 1
