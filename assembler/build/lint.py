"""What recipes must not do, checked on their text.

GPU targets stand in recipes/variants.yaml alone, package indexes in stack.toml alone; sources are
pinned, never branches; environment switches are ones that something reads; a patch says why it is
there, where upstream knows of it, and when it can go.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from assembler.sources.entries import SOURCES_FILE, TARGETS_FILE
from assembler.stack import Stack
from assembler.workspace import Workspace

# Where a pin's file, or its repository, may come from.
FILE_HOSTS = ("download.pytorch.org", "stable.repo.amd.com")
REPOSITORY_HOSTS = ("github.com",)
PATCH_WORDS = ("why:", "upstream:", "drop when:")
TEXT = (".yaml", ".toml", ".py", ".sh", ".patch", ".in", ".txt")
# Written by program, or the one place for what is looked for.
TARGETS_ALLOWED = (TARGETS_FILE, "README.md")
THE_LIST = "variants.yaml"

_GFX = re.compile(r"gfx[0-9][0-9a-f]{2,3}\b")
_INDEX = re.compile(
    r"[a-z0-9.-]*(?:pypi\.|pythonhosted\.)[a-z.]+|[a-z0-9.-]*nightlies[a-z0-9.-]*\.com|"
    r"repo\.(?:amd|radeon)\.com|download\.pytorch\.org|--(?:extra-)?index-url|/simple/"
)
_MOVING = re.compile(
    r"git (?:clone|checkout|pull|fetch|submodule)|--branch|refs/heads/|/tree/(?:main|master)|"
    r"(?:\.git)?@(?:main|master|develop)\b|releases/latest"
)
_ASSIGNED = re.compile(r"(?:^|[\s;&(\"'])([A-Z][A-Z0-9_]{2,})=(?!=)")


@dataclass(frozen=True)
class Fault:
    """One thing that a recipe does and must not: where, which rule, and what to do."""

    path: str
    line: int
    rule: str
    what: str

    def __str__(self) -> str:
        """Return it as compilers write it."""
        return f"{self.path}:{self.line}: {self.rule}: {self.what}"


@cache
def switches() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the variables that something reads, and those that nothing does."""
    text = files("assembler.build").joinpath("switches.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return data["known"], data["never"]


def lint(workspace: Workspace) -> tuple[Fault, ...]:
    """Check every recipe, and the environments that stack.toml gives images and smokes."""
    faults: list[Fault] = []
    for path in sorted(workspace.recipes.rglob("*")):
        if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts:
            where = path.relative_to(workspace.root).as_posix()
            faults += _check_file(path, where, the_list=path.parent == workspace.recipes)
    return (*faults, *_check_stack(workspace.stack()))


def _check_file(path: Path, where: str, *, the_list: bool) -> Iterator[Fault]:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if path.name not in TARGETS_ALLOWED and not (the_list and path.name == THE_LIST):
        yield from _matches(
            where, lines, _GFX, "gfx-name", "targets stand in recipes/variants.yaml alone"
        )
    yield from _matches(where, lines, _MOVING, "moving-source", "pin a commit in sources.toml")
    if path.name in (SOURCES_FILE, TARGETS_FILE):
        yield from _check_pins(where, text)
        return
    yield from _matches(where, lines, _INDEX, "index-host", "name indexes in stack.toml")
    if path.suffix == ".patch":
        head = text.partition("\n--- ")[0].lower()
        for word in PATCH_WORDS:
            if not re.search(rf"^{word} *\S", head, re.MULTILINE):
                yield Fault(where, 1, "patch-header", f"say `{word}` before the first ---")
    elif path.name == "recipe.yaml":
        yield from _check_switches(where, text)


def _matches(
    where: str, lines: list[str], pattern: re.Pattern[str], rule: str, remedy: str
) -> Iterator[Fault]:
    for number, line in enumerate(lines, 1):
        if found := pattern.search(line):
            yield Fault(where, number, rule, f"{found.group()!r}; {remedy}")


def _check_pins(where: str, text: str) -> Iterator[Fault]:
    for table in tomllib.loads(text).values():
        for entry in table if isinstance(table, list) else ():
            url = str(entry.get("url", ""))
            hosts = REPOSITORY_HOSTS if entry.get("kind") == "git" else FILE_HOSTS
            if url and (urlsplit(url).hostname not in hosts or not url.startswith("https://")):
                line = text.count("\n", 0, text.find(url)) + 1
                yield Fault(where, line, "pin-host", f"{url}; allowed are {', '.join(hosts)}")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _check_switches(where: str, text: str) -> Iterator[Fault]:
    """Check what a recipe's scripts and context assign to variables."""
    data = yaml.safe_load(text)
    outputs = data.get("outputs") or ()
    parts = [data.get("context"), data.get("build"), *(one.get("build") for one in outputs)]
    names = {
        name: None
        for part in parts
        if isinstance(part, Mapping)
        for key, value in part.items()
        if key not in ("string", "number")
        for string in _strings(value)
        for name in _ASSIGNED.findall(string)
    }
    for name in names:
        line = text.count("\n", 0, text.find(f"{name}=")) + 1
        yield from _judge(where, line, name)


def _check_stack(stack: Stack) -> Iterator[Fault]:
    for profile in stack.profile.values():
        names = {**profile.image.env}
        for smoke in profile.smoke:
            names |= smoke.env
        for name in names:
            yield from _judge("stack.toml", 1, name)


def _judge(where: str, line: int, name: str) -> Iterator[Fault]:
    known, never = switches()
    if name in never:
        yield Fault(where, line, "dead-switch", f"{name}: {never[name]}")
    elif name not in known:
        yield Fault(
            where,
            line,
            "unknown-switch",
            f"{name}; say in assembler/build/switches.toml who reads it",
        )
