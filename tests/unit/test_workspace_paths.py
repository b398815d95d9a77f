"""Paths that a project cannot have are refused before anything is done in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assembler.errors import ConfigError
from assembler.workspace import Workspace


@pytest.mark.parametrize("name", ['a"b', "a$b", "a`b", "a\\b"])
def test_what_build_scripts_cannot_quote_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="build scripts cannot quote") as caught:
        Workspace.at(tmp_path / name / "project")
    assert f" has {name[1]} in it" in caught.value.saw
    # Only the project's own path stands in scripts.
    assert Workspace.at(tmp_path, channel=tmp_path / name).channel == tmp_path / name


def test_a_line_break_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a line break"):
        Workspace.at(tmp_path / "a\nb")


def test_a_path_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"a\xffb")
    for root, channel in ((odd, None), (tmp_path, odd)):
        with pytest.raises(ConfigError, match=r"a\\xffb is not valid UTF-8") as caught:
            Workspace.at(root, channel=channel)
        str(caught.value).encode()  # can be printed


@pytest.mark.parametrize("name", ["q'x", "a&b;c", "a#b%41", "a!b*?[c]", "a(b) é漢", "~x", "-x"])
def test_other_characters_are_welcome(tmp_path: Path, name: str) -> None:
    assert Workspace.at(tmp_path / name).root == tmp_path / name
