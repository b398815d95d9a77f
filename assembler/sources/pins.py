"""Pins: what every upstream artefact is called, where it comes from and what its bytes must be.

``recipes/<recipe>/sources.toml`` holds one array of tables per profile (``[[cpu]]``), and
``recipes/wheels/<profile>.toml`` one ``[[wheel]]`` table per PyPI dependency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from assembler.errors import ConfigError
from assembler.sources.entries import SOURCES_FILE, Entry, entries_of, recipe_name, table_of
from assembler.stack import Profile
from assembler.workspace import Workspace

__all__ = ["SOURCES_FILE", "Pin", "Unpinned", "Wheel", "read_pin_file", "read_pins", "read_wheels"]

Kind = Literal["pypi", "url", "debian", "git", "path"]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
# A plain file name: no folder, no option-like start, nothing a shell or a URL would split.
FileName = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._+~%!:-]*)?$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]
Commit = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]

# What each kind cannot do without. A path's bytes are only known once it is given.
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "pypi": ("version", "file", "sha256"),
    "url": ("version", "file", "sha256", "url"),
    "debian": ("version", "file", "sha256", "suite", "architecture"),
    "git": ("version", "file", "sha256", "url", "commit"),
    "path": (),
}


class Pin(BaseModel):
    """One artefact: a distribution on PyPI, a URL, a Debian package, a git commit or a given path.

    ``name`` is the distribution, Debian package or repository name; ``file`` the name of the file
    that recipes see; ``size`` its bytes; ``url`` the address (kind url), the second place
    (kind pypi) or the repository (kind git). Pins of kind path have no version, file and hash
    until a source tree is given. ``index`` is one of the profile's indexes, where the artefact is
    found instead of the user's own; ``target`` the GPU target it is for, if it is for one; ``when``
    the choices of the profile that it holds for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    name: Name
    version: str = Field(default="", pattern=r"^\S*$")
    file: FileName = ""
    sha256: Sha256 = ""
    size: int | None = Field(default=None, ge=0)
    url: str | None = Field(default=None, pattern=r"^[^-\s][^\r\n]*$")
    suite: Name | None = None
    architecture: Name | None = None
    commit: Commit | None = None
    submodules: tuple[str, ...] = ()
    index: Name | None = None
    target: Name | None = None
    when: tuple[tuple[str, str], ...] = ()
    why: str = ""

    @field_validator("when", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        return tuple(sorted(value.items())) if isinstance(value, dict) else value

    @field_serializer("when")
    def _table(self, value: tuple[tuple[str, str], ...]) -> dict[str, str]:
        return dict(value)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if isinstance(self, Unpinned):
            return self
        missing = [key for key in _NEEDS[self.kind] if not getattr(self, key)]
        if "sha256" in missing:
            raise ValueError("sha256 is missing: the artefact is unpinned")
        if missing:
            raise ValueError(f"{missing[0]} is missing, and kind {self.kind!r} needs it")
        return self

    @property
    def label(self) -> str:
        """How messages call the artefact."""
        return f"{self.name} {self.version}".strip()


class Wheel(Pin):
    """A PyPI dependency of the stack, as ``recipes/wheels/<profile>.toml`` lists it."""

    kind: Literal["pypi"] = "pypi"
    conda_name: Name


class Unpinned(Pin):
    """An artefact that is not resolved yet: it can be listed, not fetched."""


P = TypeVar("P", bound=Pin)


def _check(path: Path, table: str, position: int, entry: object, model: type[P]) -> P:
    try:
        return model.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        name = entry.get("name", "without a name") if isinstance(entry, dict) else "not a table"
        where = f"{path}: [[{table}]] entry {position} ({name}){f': {key}' if key else ''}"
        remedy = "correct it"
        if "unpinned" in first["msg"] or key == "sha256":
            remedy = "let `assembler pin` resolve and record it"
        raise ConfigError(
            f"{where}: {first['msg'].removeprefix('Value error, ')}", remedy=remedy
        ) from None


def _unique(path: Path, pins: Iterable[Pin]) -> None:
    seen: set[str] = set()
    for pin in pins:
        for what, value in (("name", pin.name), ("file", pin.file)):
            if value and f"{what} {value}" in seen:
                raise ConfigError(
                    f"{path}: two pins have the {what} {value!r}", remedy="remove one of them"
                )
            seen.add(f"{what} {value}")


def read_pin_file(path: Path, table: str) -> tuple[Pin, ...]:
    """Return the pins of one profile's table in a recipe's sources.toml, in the file's order.

    A table that is not there is an empty one. ConfigError names file, entry and key.
    """
    entries = table_of(path, table)
    pins = tuple(
        _check(path, table, position, entry, Pin) for position, entry in enumerate(entries, 1)
    )
    _unique(path, pins)
    return pins


def source_folder(recipe: str, pin: Pin) -> str:
    """Return the folder of a pin's file below the fetched sources: the recipe's, or a target's."""
    return f"{recipe}-{pin.target}" if pin.target else recipe


def read_wheels(path: Path) -> tuple[Wheel, ...]:
    """Return the wheel list of a profile, in the file's order. ConfigError as for pin files."""
    if not path.exists():
        raise ConfigError(
            f"there is no {path}", remedy="let `assembler pin --wheels` resolve and write it"
        )
    entries = table_of(path, "wheel")
    wheels = tuple(
        _check(path, "wheel", position, entry, Wheel) for position, entry in enumerate(entries, 1)
    )
    _unique(path, wheels)
    return wheels


def read_pins(
    workspace: Workspace, profile: Profile, *, unpinned: bool = False
) -> dict[str, tuple[Pin, ...]]:
    """Return a profile's pins by recipe name, and each wheel of its list under its conda name.

    Recipes without artefacts of their own are not in the result. An entry without a hash is an
    error, or with ``unpinned`` an ``Unpinned`` among the pins.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in entries_of(workspace, profile):
        groups.setdefault(entry.recipe, []).append(entry)
    found: dict[str, tuple[Pin, ...]] = {}
    for recipe, entries in groups.items():
        pins = []
        for position, entry in enumerate(entries, 1):
            known = entry.kind == "path" or entry.data.get("sha256")
            model = Unpinned if unpinned and not known else Pin
            pins.append(_check(entry.path, profile.pin_table, position, entry.data, model))
        _unique(entries[0].path, pins)
        found[recipe] = tuple(pins)
    if profile.wheels is None:
        return found
    path = workspace.root / profile.wheels
    for wheel in read_wheels(path):
        if wheel.conda_name in found or wheel.conda_name in map(recipe_name, profile.recipes):
            raise ConfigError(
                f"{path}: {wheel.conda_name!r} is listed twice or has a recipe of its own",
                remedy="keep one of the two",
            )
        found[wheel.conda_name] = (wheel,)
    return found
