"""Source trees that the user gives: ``--source atom=PATH`` or ``--source atom=URL@COMMIT``.

They are remembered in build/given.json, so that later commands need not repeat them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assembler.errors import ConfigError
from assembler.workspace import Workspace

GIVEN_FILE = "given.json"

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REMEDY = "write --source NAME=PATH or --source NAME=URL@COMMIT (--source NAME= forgets it)"


@dataclass(frozen=True)
class GitRef:
    """One commit of a repository, by its full hash."""

    url: str
    commit: str

    def __str__(self) -> str:
        """Return it as the user writes it."""
        return f"{self.url}@{self.commit}"


Given = Path | GitRef


def parse(option: str, *, base: Path) -> tuple[str, Given | None]:
    """Return the name and source of one ``NAME=…`` option; None means that it is to be forgotten.

    A path is taken relative to ``base`` and must be a folder. ConfigError says what is wrong.
    """
    name, equals, value = option.partition("=")
    if not equals or not name:
        raise ConfigError(f"--source {option!r} names no source", remedy=_REMEDY)
    if not value:
        return name, None
    try:
        folder = (base / Path(value).expanduser()).absolute()
    except RuntimeError:
        raise ConfigError(
            f"--source {name}: {value} names the home of nobody known here", remedy=_REMEDY
        ) from None
    if folder.is_dir():
        return name, folder
    url, at, commit = value.rpartition("@")
    if not at or "/" in commit or not ("://" in url or ":" in url or (base / url).exists()):
        raise ConfigError(f"--source {name}: there is no folder {folder}", remedy=_REMEDY)
    if url.startswith("-") or "::" in url.partition("/")[0]:
        raise ConfigError(f"--source {name}: {url!r} is no repository's address", remedy=_REMEDY)
    if not _COMMIT.fullmatch(commit):
        raise ConfigError(
            f"--source {name}: {commit!r} is not a full commit hash, and a branch or tag may move",
            remedy="give the 40 digits that `git ls-remote URL` shows",
        )
    return name, GitRef(url if ":" in url else str((base / url).absolute()), commit)


def remembered(workspace: Workspace) -> dict[str, Given]:
    """Return what was given in earlier commands; ConfigError when the file is damaged."""
    path = workspace.build / GIVEN_FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Path(one["path"]) if "path" in one else GitRef(one["url"], one["commit"])
            for name, one in data.items()
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{path} cannot be read", remedy="remove it and give your sources again with --source"
        ) from None


def remember(workspace: Workspace, given: Mapping[str, Given]) -> None:
    """Write down what was given, for later commands."""
    path = workspace.build / GIVEN_FILE
    data = {
        name: {"path": str(one)}
        if isinstance(one, Path)
        else {"url": one.url, "commit": one.commit}
        for name, one in sorted(given.items())
    }
    text = json.dumps(data, indent=2) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def take(
    workspace: Workspace, options: Sequence[str], *, base: Path | None = None
) -> dict[str, Given]:
    """Merge this command's ``--source`` options with what is remembered, and remember the result.

    What every command calls before ``fetch``. Paths are relative to ``base``, the current folder.
    """
    given = remembered(workspace)
    for option in options:
        name, one = parse(option, base=base or Path.cwd())
        if one is None:
            given.pop(name, None)
        else:
            given[name] = one
    if options:
        remember(workspace, given)
    return given
