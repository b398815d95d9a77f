"""Entries of pin files as they are written, before they are checked and complete.

An entry holds where its ``when`` fits the profile's choices. One whose name has ``{gfx}`` stands
for one artefact a GPU target; what is known of those (their hashes) is in ``targets.toml`` beside
the pin file, which ``assembler pin`` writes: no pin file names a target.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assembler.errors import ConfigError
from assembler.stack import Profile
from assembler.variants import read_axes
from assembler.workspace import Workspace

SOURCES_FILE = "sources.toml"
TARGETS_FILE = "targets.toml"
PLACE = "{gfx}"


@dataclass(frozen=True)
class Entry:
    """One artefact of a recipe as far as files describe it.

    ``path`` is the file that holds it, or will: ``new`` tells an artefact of a target that is not
    in targets.toml yet.
    """

    recipe: str
    path: Path
    data: Mapping[str, Any]
    new: bool = False

    @property
    def name(self) -> str:
        """The distribution, Debian package or repository."""
        return str(self.data.get("name", ""))

    @property
    def key(self) -> str:
        """What tells the entries of a profile apart."""
        return f"{self.recipe}/{self.name}"

    @property
    def kind(self) -> str:
        """Where it comes from."""
        return str(self.data.get("kind", ""))


def parse(path: Path) -> dict[str, Any]:
    """Return a TOML file as plain data; ConfigError when it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML ({error})", remedy="correct it") from None


def table_of(path: Path, table: str) -> list[Any]:
    """Return the entries of one array of tables; a table that is not there is an empty one."""
    entries = parse(path).get(table, [])
    if not isinstance(entries, list):
        raise ConfigError(
            f"{path}: {table} is not an array of tables", remedy=f"write each pin as [[{table}]]"
        )
    return entries


def same_artefact(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two entries speak of one artefact, whatever its version."""
    return one.get("name") == other.get("name") and dict(one.get("when", {})) == dict(
        other.get("when", {})
    )


def holds(entry: object, choose: Mapping[str, str]) -> bool:
    """Tell whether an entry holds for these choices; one without conditions always does."""
    when = entry.get("when", {}) if isinstance(entry, dict) else {}
    return not isinstance(when, dict) or all(choose.get(axis) == one for axis, one in when.items())


def _for_target(value: Any, target: str) -> Any:
    if isinstance(value, str):
        return value.replace(PLACE, target)
    return [_for_target(one, target) for one in value] if isinstance(value, list) else value


def expanded(
    recipe: str, path: Path, entries: Iterable[Any], table: str, targets: Iterable[str]
) -> Iterator[Entry]:
    """Yield the entries, those with ``{gfx}`` once a target and with what targets.toml knows."""
    beside = path.with_name(TARGETS_FILE)
    known = table_of(beside, table) if beside.exists() else []
    for data in entries:
        if not isinstance(data, dict) or PLACE not in str(data.get("name", "")):
            yield Entry(recipe, path, data)
            continue
        for target in targets:
            one = {key: _for_target(value, target) for key, value in data.items()}
            one["target"] = target
            hit = next((item for item in known if same_artefact(item, one)), None)
            if hit is not None and hit.get("version") == one.get("version"):
                yield Entry(recipe, beside, {**one, **hit})
            else:
                yield Entry(recipe, beside, one, new=hit is None)


def recipe_folder(workspace: Workspace, recipe: str) -> Path:
    """Return the folder of a recipe as stack.toml lists it (``triton``, ``rocm/pytorch``)."""
    return workspace.recipes / recipe


def recipe_name(recipe: str) -> str:
    """Return a recipe's name, by which sources, packages and logs go: its folder's own name."""
    return recipe.rpartition("/")[2]


def entries_of(workspace: Workspace, profile: Profile) -> Iterator[Entry]:
    """Yield the entries of a profile's recipes that hold for its choices, in their order."""
    for recipe in profile.recipes:
        path = recipe_folder(workspace, recipe) / SOURCES_FILE
        if not path.exists():
            continue
        entries = [one for one in table_of(path, profile.pin_table) if holds(one, profile.choose)]
        targets: tuple[str, ...] = ()
        if any(isinstance(one, dict) and PLACE in str(one.get("name", "")) for one in entries):
            targets = read_axes(workspace.variant_files(profile)).gfx_targets
        yield from expanded(recipe_name(recipe), path, entries, profile.pin_table, targets)
