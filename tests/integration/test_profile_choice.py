"""Which profile a command means: the option, then ASSEMBLER_PROFILE, then stack.toml's default."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from assembler.workspace import Workspace
from tests.conftest import run_assembler


@pytest.fixture
def two(tiny: Workspace) -> Iterator[Workspace]:
    """The tiny stack, made, beside a default profile that is not."""
    stack = tiny.root / "stack.toml"
    text = stack.read_text()
    other = text[text.index("[profile") :].replace("profile.tiny", "profile.other")
    other = other.replace('name = "tiny"', 'name = "other"')
    stack.write_text(text.replace('default_profile = "tiny"', 'default_profile = "other"') + other)
    done = run_assembler("clean-image", "-q", cwd=tiny.root, env={"ASSEMBLER_PROFILE": "tiny"})
    assert done.returncode == 0, done.stderr
    return tiny


def test_the_variable_chooses_and_the_option_wins(two: Workspace) -> None:
    assert (two.root / "locks/tiny/conda-lock.yml").is_file()
    assert not (two.root / "locks/other").exists()
    variable = {"ASSEMBLER_PROFILE": "nothing"}
    asked = run_assembler("lock", "--check", "--profile", "tiny", cwd=two.root, env=variable)
    assert asked.returncode == 0, asked.stderr
    wrong = run_assembler("lock", "--check", cwd=two.root, env=variable)
    assert "there is no profile 'nothing'" in wrong.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("lock", "--check"), "choose with --profile what is locked: tiny"),
        (("install", "-p", "env"), "choose with --profile what is locked: tiny"),
        (("verify",), "choose with --profile what is made: tiny"),
        (("load",), "choose with --profile what is made: tiny"),
    ],
)
def test_what_the_default_profile_lacks_another_may_have(
    two: Workspace, command: tuple[str, ...], words: str
) -> None:
    done = run_assembler(*command, cwd=two.root)
    assert done.returncode != 0
    assert words in done.stderr


def test_commands_in_an_export_mean_its_profile(two: Workspace, tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = run_assembler("mirror", "--profile", "tiny", "--export", site, cwd=two.root)
    assert done.returncode == 0, done.stderr
    assert tomllib.loads((site / "stack.toml").read_text())["default_profile"] == "tiny"
    assert run_assembler("lock", "--check", cwd=site).returncode == 0
