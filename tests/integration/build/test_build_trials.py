"""``assembler test`` and ``assembler build --test``: tests that packages carry."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from assembler.build.subjects import lacks, subjects, virtual_packages
from assembler.build.trials import TIMEOUT, Trials
from assembler.channel.index import read_records
from assembler.channel.records import Record
from assembler.errors import BuildError, ConfigError
from assembler.progress import SilentProgress
from assembler.workspace import Workspace
from tests.conftest import run_assembler

PASSES = "  - script:\n      - test -f $PREFIX/lib/tiny/data\n"
FAILS = "  - script:\n      - echo 'the file is wrong' >&2\n      - exit 3\n"
LACKS = "  - script:\n      - 'echo \"not-run: no GPU here\"'\n"


def add_tests(workspace: Workspace, recipe: str, *tests: str) -> None:
    """Give a recipe tests."""
    file = workspace.recipes / recipe / "recipe.yaml"
    file.write_text(f"{file.read_text()}\ntests:\n{''.join(tests)}")


def run(workspace: Workspace, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run a command with ``--json``; return its exit code, its object and its sentences."""
    done = run_assembler(*arguments, "--json", "-q", cwd=workspace.root)
    return done.returncode, json.loads(done.stdout), done.stderr


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return package name -> what came of its tests."""
    return {
        Path(trial["path"]).name.rsplit("-", 2)[0]: trial for trial in report["packages"]
    }  # fmt: skip


@pytest.fixture
def tested(tiny: Workspace) -> Workspace:
    """A stack with a package that carries tests."""
    add_tests(tiny, "tiny-lib", PASSES, LACKS)
    return tiny


def test_build_tests_what_it_built_and_test_says_it_again(tested: Workspace) -> None:
    code, built, words = run(tested, "build", "--test")
    assert code == 0, words
    trial = by_name(built["tests"])["tiny-lib"]
    assert (trial["outcome"], trial["passed"], trial["not_run"]) == ("passed", 1, 1)
    assert built["tests"]["not_run"] == {trial["path"]: ["no GPU here"]}
    assert "lib/tiny/data" in Path(trial["log"]).read_text()
    code, again, _words = run(tested, "build", "--test")
    assert code == 0
    assert "tests" not in again
    code, report, _words = run(tested, "test", "tiny-l*")
    assert code == 0
    assert set(by_name(report)) == {"tiny-lib"}
    assert not list((tested.build / "tests").glob("*"))


def test_a_failing_test_is_a_sentence_that_names_the_log(tiny: Workspace) -> None:
    add_tests(tiny, "tiny-lib", FAILS)
    add_tests(tiny, "tiny-tool", FAILS)
    code, report, words = run(tiny, "build", "--test")
    assert code == 11
    assert len(words.strip().splitlines()) == 1
    assert "the file is wrong" in words
    assert "read the log" in words
    assert report["error"]["exit_code"] == 11
    # the channel is whole all the same, and only the first failure was run into
    assert {"tiny", "tiny-tool"} <= {record.name for record in read_records(tiny.channel)}
    assert len(report["tests"]["failed"]) == 1
    assert report["tests"]["untested"]
    code, report, words = run(tiny, "test", "--keep-going")
    assert code == 11
    assert "the tests of 2 of 8 packages failed" in words
    assert sorted(by_name(report)) == sorted(
        {record.name for record in read_records(tiny.channel)}
    )  # fmt: skip
    assert all(Path(by_name(report)[name]["log"]).is_file() for name in ("tiny-lib", "tiny-tool"))


def test_what_the_machine_lacks_is_told_and_is_no_pass(tiny: Workspace) -> None:
    file = tiny.recipes / "tiny-tool" / "recipe.yaml"
    text = file.read_text()
    assert "  run:\n    - tiny-lib\n" in text
    file.write_text(text.replace("  run:\n", "  run:\n    - __glibc >=9.39\n"))
    add_tests(tiny, "tiny-tool", PASSES)
    # what needs it cannot be installed here either
    add_tests(tiny, "tiny", PASSES)
    code, report, words = run(tiny, "build", "--test")
    assert code == 0, words
    here = virtual_packages()["__glibc"]
    for name in ("tiny-tool", "tiny"):
        trial = by_name(report["tests"])[name]
        assert (trial["outcome"], trial["passed"], trial["not_run"]) == ("not run", 0, 1)
        assert trial["words"] == [f"tiny-tool needs __glibc >=9.39, this machine has {here}"]
    done = run_assembler("test", cwd=tiny.root)
    assert "0 of 2 tests passed" in done.stdout
    assert "2 not run here" in done.stdout


def test_a_test_that_hangs_ends_with_its_environment(
    tiny: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_tests(tiny, "tiny-lib", "  - script:\n      - sleep 1000\n")
    assert run(tiny, "build")[0] == 0
    monkeypatch.setattr("assembler.build.trials.TIMEOUT", 3.0)
    assert TIMEOUT > 3
    profile = tiny.stack().select(None)
    found = subjects(tiny, profile, only=["tiny-lib"])
    [trial] = Trials(tiny, profile, SilentProgress()).run(found).of("failed")
    assert "did not end within 3 s" in trial.words[0]


def test_names_that_are_none_and_empty_channels_are_sentences(tiny: Workspace) -> None:
    profile = tiny.stack().select(None)
    with pytest.raises(BuildError, match="has no package of profile tiny"):
        subjects(tiny, profile)
    assert run(tiny, "build")[0] == 0
    with pytest.raises(ConfigError, match="did you mean 'tiny-tool'"):
        subjects(tiny, profile, only=["tiny-tol"])


def test_one_fitting_package_of_a_name_is_enough() -> None:
    """A dependency counts as lacking only when none of its packages can be installed."""

    def record(name: str, build: str, *depends: str) -> Record:
        return Record(name, "1", build, 0, "noarch", f"{name}-1-{build}.conda", "", "", 0, depends)

    old, new = record("a", "old", "__glibc >=2.17"), record("a", "new", "__glibc >=9.9")
    user = record("b", "0", "a", "elsewhere")
    here = {"__glibc": "2.36"}
    assert lacks(user, {"a": [new, old]}, here) == ""
    assert lacks(user, {"a": [new]}, here) == "a needs __glibc >=9.9, this machine has 2.36"
    assert lacks(record("c", "0", "__cuda"), {}, here) == "c needs __cuda, this machine has none"
    # packages that need each other
    one, two = record("d", "0", "e"), record("e", "0", "d")
    assert lacks(one, {"d": [one], "e": [two]}, here) == ""


def test_an_environment_that_cannot_be_made_says_what_is_missing(tiny: Workspace) -> None:
    file = tiny.recipes / "tiny-tool" / "recipe.yaml"
    file.write_text(file.read_text().replace("  run:\n", "  run:\n    - of-no-channel\n"))
    add_tests(tiny, "tiny-tool", PASSES)
    code, _report, words = run(tiny, "build", "--test")
    assert code == 11
    assert "of-no-channel" in words
    assert "no candidates were found" in words


def test_an_interrupt_ends_the_tests_and_starts_no_more(tiny: Workspace) -> None:
    sleeps = "  - script:\n      - touch $RECIPE_STARTED; sleep 1000\n"
    started = tiny.root / "started"
    add_tests(tiny, "tiny-lib", *[sleeps.replace("$RECIPE_STARTED", str(started))] * 3)
    assert run(tiny, "build")[0] == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "assembler", "test", "-q"], cwd=tiny.root, stderr=subprocess.PIPE
    )
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    _out, words = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted" in words
    assert not list((tiny.build / "tests").glob("*"))
