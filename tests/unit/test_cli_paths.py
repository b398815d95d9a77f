"""A path on the command line that is not there is one sentence and exit code 3, everywhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from assembler.cli.main import COMMANDS, cli, run
from assembler.errors import ConfigError
from tests.conftest import TINY

# Command lines whose last word names something to read.
READING = [
    "gfx -q",
    "image --lock",
    "install -p new --lock",
    "load",
    "lock diff stack.toml",
    "lock diff",
    "push localhost:1/name --layout",
    "reproduce",
    "reproduce --lock",
    "sbom",
    "sbom --lock",
    "verify",
    "verify --policy",
    "verify . --policy",
    "build --project",
    "clean-image --source atom=",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(TINY / "stack.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", READING)
@pytest.mark.parametrize("name", ["nowhere", "stack.toml/inside", "dangling", "loop", "-- -rf"])
def test_what_is_not_there(
    line: str, name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "dangling").symlink_to("nowhere")
    (here / "loop").symlink_to("loop")
    words = line.split()
    if name.startswith("--") and (words[-1].startswith("--") or words[-1].endswith("=")):
        pytest.skip("an option's value needs no such mark")
    after = [*name.split()] if not line.endswith("=") else []
    if line.endswith("="):
        words[-1] += name
    if line == "lock diff":
        after.append(str(here))
    assert run([*words, *after]) == ConfigError.exit_code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("assembler: ")
    assert len(said.err.splitlines()) == 1
    assert name.split()[-1] in said.err
    assert sorted(os.listdir(here)) == ["dangling", "loop", "stack.toml"]  # noqa: PTH208


def parameters() -> Iterator[tuple[str, click.Parameter]]:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        inner = command.commands.values() if isinstance(command, click.Group) else ()
        for one in (command, *inner):
            for parameter in one.params:
                yield f"{name} {parameter.name}", parameter


def test_the_table_has_every_path_that_is_read() -> None:
    """A new option is either in the table above or named here as a place to write to."""
    written = {"channel", "cache", "output", "prefix", "project", "scratch", "target", "export"}
    known = {line.split()[0] for line in READING}
    for name, parameter in parameters():
        if isinstance(parameter.type, click.Path) and parameter.name not in written:
            assert name.split()[0] in known, name
            assert type(parameter.type).__name__ == "Existing", name
