"""What the command line does with odd streams, signals and files, whatever the command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from assembler.workspace import Workspace
from tests.conftest import run_assembler


@pytest.fixture
def made(tiny: Workspace) -> Workspace:
    assert run_assembler("clean-image", "-q", cwd=tiny.root).returncode == 0
    return tiny


def shell(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which ``$A`` is the command."""
    return subprocess.run(
        ["bash", "-c", script],
        cwd=cwd,
        env={"A": f"{sys.executable} -m assembler", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("$A build --list >&-", 0),
        ("$A build --list 2>&-", 0),
        ("$A lock --json >/dev/full", 12),
        ("set -o pipefail; $A build --list -v | head -n 1 >/dev/null", 0),
        ("set -o pipefail; $A build 2>&1 >/dev/null | true", 0),
        ("$A build 2>/dev/full", 0),
    ],
)
def test_closed_and_full_streams(made: Workspace, line: str, code: int) -> None:
    done = shell(line, made.root)
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("clean-image", "--no-such-option"),
        ("build", "--profile", "tyny"),
        ("gfx",),
        ("verify", "nowhere"),
    ],
)
def test_every_failure_is_an_object_with_json(tiny: Workspace, arguments: tuple[str, ...]) -> None:
    done = run_assembler(*arguments, "--json", cwd=tiny.root)
    error = json.loads(done.stdout)["error"]
    assert error["exit_code"] == done.returncode != 0
    assert {"kind", "saw", "remedy"} <= set(error)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_ends_its_workers(
    tiny: Workspace, number: signal.Signals
) -> None:
    script = tiny.recipes / "tiny-lib" / "build.sh"
    script.write_text("touch started; sleep 60\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "assembler", "build", "-q"],
        cwd=tiny.root,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not list(tiny.build.glob("work/*/tiny-lib-*/**/started")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _out, words = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in words
    assert "Traceback" not in words


@pytest.mark.parametrize(
    "file", ["stack.toml", "recipes/tiny/recipe.yaml", "locks/tiny/conda-lock.yml"]
)
def test_a_folder_in_a_files_place_is_one_sentence(made: Workspace, file: str) -> None:
    (made.root / file).unlink()
    (made.root / file).mkdir()
    done = run_assembler("clean-image", "-q", cwd=made.root)
    assert done.returncode not in (0, 1)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_locked_refuses_another_choice_of_targets(made: Workspace) -> None:
    lock = made.locks / "tiny" / "conda-lock.yml"
    before = lock.read_bytes()
    done = run_assembler("clean-image", "-q", "--locked", "--gfx", "gfx942", cwd=made.root)
    assert done.returncode == 9, done.stderr
    assert lock.read_bytes() == before


def test_a_choice_of_targets_stays_and_is_told(made: Workspace) -> None:
    assert run_assembler("clean-image", "-q", "--gfx", "gfx942", cwd=made.root).returncode == 0
    plain = run_assembler("clean-image", cwd=made.root)
    assert "--gfx all takes them all" in plain.stderr
    every = run_assembler("clean-image", "-q", "--json", "--gfx", "all", cwd=made.root)
    assert json.loads(every.stdout)["gfx_targets"] == ["gfx942", "gfx950"]


def test_a_document_that_was_written_is_named(made: Workspace) -> None:
    words = run_assembler("sbom", "-o", "bill.json", cwd=made.root)
    assert (words.returncode, words.stdout) == (0, "bill.json\n")
    written = (made.root / "bill.json").read_text()
    data = json.loads(run_assembler("sbom", "-o", "bill.json", "--json", cwd=made.root).stdout)
    assert (data["file"], data["bytes"]) == ("bill.json", len(written.encode()))
    assert run_assembler("sbom", "-o", "/dev/stdout", cwd=made.root).stdout == written
