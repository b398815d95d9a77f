"""The commands: what they print, their exit codes, and that failures write nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from assembler.channel.index import publish
from assembler.workspace import Workspace
from tests.conftest import run_assembler
from tests.tiny_packages import make_package


def run(project: Workspace, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_assembler(
        *arguments, "-c", project.channel, "--project", project.root, cwd=project.root
    )


def test_lock_says_what_changed_and_what_is_assumed(project: Workspace, tmp_path: Path) -> None:
    first = run(project, "lock")
    assert first.returncode == 0, first.stderr
    assert "added" in first.stdout
    assert "assumed of every machine: __glibc 2.36, __unix 0" in first.stdout
    assert "GPU targets gfx942, gfx950" in first.stdout
    assert "no differences" in run(project, "lock").stdout
    publish(project.channel, [make_package(tmp_path, "zlib", "2.5", licence="MIT")])
    data = json.loads(run(project, "lock", "--json", "--update", "zlib").stdout)
    (change,) = data["difference"]["changes"]
    assert (change["name"], change["kind"], change["new_license"]) == ("zlib", "upgraded", "MIT")
    assert set(data["written"]) == {"conda-lock.yml", "pixi.lock", "explicit.txt"}


def test_check_has_an_exit_code_for_each_verdict(locked: Workspace) -> None:
    assert run(locked, "lock", "--check").returncode == 0
    stack = locked.root / "stack.toml"
    text = stack.read_text()
    stack.write_text(text.replace('__glibc = "2.36"', '__glibc = "2.28"'))
    changed = run(locked, "lock", "--check", "--json")
    assert changed.returncode == 40
    assert json.loads(changed.stdout)["reasons"][0]["where"].startswith("stack.toml:")
    stack.write_text(text)
    package = next((locked.channel / "noarch").glob("zlib-*"))
    package.unlink()
    lacking = run(locked, "lock", "--check")
    assert lacking.returncode == 41
    assert package.name in lacking.stdout


def test_diff_of_two_locks_as_table_json_and_markdown(locked: Workspace, tmp_path: Path) -> None:
    old = tmp_path / "old.yml"
    old.write_bytes((locked.root / "locks/data/conda-lock.yml").read_bytes())
    assert run(locked, "lock", "--gfx", "gfx942").returncode == 0
    new = locked.root / "locks/data"
    shown = run_assembler("lock", "diff", old, new, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "GPU target gfx950 removed" in shown.stdout
    data = json.loads(run_assembler("lock", "diff", "--json", old, new, cwd=tmp_path).stdout)
    assert data["gfx_removed"] == ["gfx950"]
    text = run_assembler("lock", "diff", "--markdown", old, new, cwd=tmp_path).stdout
    assert text.startswith("| package |")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["lock", "--gfx", "gfx999"], 3, "is not a gfx target"),
        (["lock", "--update", "nothing"], 3, "--update names 'nothing'"),
        (["lock", "diff", "none.yml", "none.yml"], 3, "there is no lock"),
        (["install", "-p", "e", "--lock", "none.yml"], 3, "there is no lock"),
        (["install", "-p", "."], 3, "is not a conda environment"),
        (["lock", "--profile", "dat"], 3, "there is no profile"),
    ],
)
def test_failures_are_one_sentence_and_write_nothing(
    locked: Workspace, arguments: list[str], code: int, words: str
) -> None:
    before = {path: path.read_bytes() for path in locked.root.parent.rglob("*") if path.is_file()}
    common = ["-c", locked.channel, "--project", locked.root] if "diff" not in arguments else []
    done = run_assembler(*arguments, *common, cwd=locked.root)
    assert done.returncode == code, done.stderr
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("assembler: ")]
    assert words in line
    assert "Traceback" not in done.stderr
    after = {path: path.read_bytes() for path in locked.root.parent.rglob("*") if path.is_file()}
    assert {p: d for p, d in after.items() if ".state" not in str(p)} == {
        p: d for p, d in before.items() if ".state" not in str(p)
    }


@pytest.mark.parametrize("content", ["", "version: 1\n", "\ufeffversion: 1\n", "version: 1\r\n"])
def test_a_hostile_lock_stops_install_and_check_and_not_lock(
    locked: Workspace, content: str
) -> None:
    path = locked.root / "locks/data/conda-lock.yml"
    good = path.read_bytes()
    path.write_bytes(content.encode())
    for arguments in (["install", "-p", locked.root / "e"], ["lock", "--check"]):
        done = run(locked, *arguments)
        assert done.returncode == 9, done.stderr
    assert not (locked.root / "e").exists()
    assert path.read_bytes() == content.encode()
    again = run(locked, "lock")
    assert again.returncode == 0
    assert "it is made anew" in again.stderr
    assert path.read_bytes() == good


def test_channel_check_and_repair(locked: Workspace) -> None:
    assert "all whole and indexed" in run(locked, "channel", "check").stdout
    package = next((locked.channel / "noarch").glob("zlib-*"))
    package.write_bytes(package.read_bytes()[:-7])
    found = run(locked, "channel", "check", "--json")
    assert found.returncode == 7
    assert json.loads(found.stdout)["problems"][0]["kind"] == "damaged"
    repaired = run(locked, "channel", "repair")
    assert repaired.returncode == 0
    assert "was damaged" in repaired.stdout
    assert run(locked, "channel", "check").returncode == 0
    assert run(locked, "channel", "url").stdout.strip().endswith("/ch%20%2B%20%2541%23%C3%A9")
