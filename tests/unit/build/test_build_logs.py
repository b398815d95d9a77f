from __future__ import annotations

from pathlib import Path

import pytest

from assembler.build.logs import LONGEST, tail
from assembler.build.worker import demand_scratch
from assembler.errors import ConfigError

HEAD = """\
Starting build of 1 outputs

✔ Successfully updated the build environment

✔ Successfully updated the host environment
"""
FOOT = """\
Script failed with status 3

Script execution failed.

  Work directory: /somewhere
"""
FAILED = "Script failed with status 3"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("+ bash build.sh\nabout to fail\n", f"about to fail | {FAILED}"),
        ("about to fail\n+ bash build.sh\n", f"about to fail | {FAILED}"),
        ("+ bash build.sh\n", f"+ bash build.sh | {FAILED}"),
        ("+ bash build.sh\n+ cd x\n+ test a = b\n", f"+ test a = b | {FAILED}"),
        ("+ a\n+ b\none\ntwo\n+ c\n", f"one | two | + c | {FAILED}"),
        ("1\n2\n3\n4\n", f"2 | 3 | 4 | {FAILED}"),
    ],
)
def test_a_tail_is_what_the_script_said_last(tmp_path: Path, script: str, words: str) -> None:
    log = tmp_path / "log"
    log.write_text(HEAD + script + FOOT)
    assert tail(log) == words


def test_without_a_script_it_is_what_rattler_build_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(HEAD + "PyRattlerBuildError: no such file\n")
    assert tail(log) == "no such file"
    log.write_text(HEAD)
    assert tail(log) == "Starting build of 1 outputs"
    log.write_text("x" * 1000)
    assert tail(log) == "x" * LONGEST
    assert tail(tmp_path / "none") == ""


def test_a_tmpdir_that_takes_no_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    demand_scratch()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    demand_scratch()
    (tmp_path / "file").touch()
    for name in ("none", "file"):
        monkeypatch.setenv("TMPDIR", str(tmp_path / name))
        with pytest.raises(ConfigError, match=f"TMPDIR is {tmp_path / name}, where no file"):
            demand_scratch()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
