"""data/jit.toml as models: needs, switches and costs of the systems that compile at run time."""

from __future__ import annotations

import fnmatch
import functools
import tomllib
from importlib import resources
from typing import Literal

from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict

from assembler.verify.policy import matches

Effect = Literal["off", "hidden", "rebuild", "ahead", "wrong-target"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Need(_Data):
    """Something that a build cannot do without; one of the programs or files is enough."""

    id: str
    what: str
    programs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    variable: str | None = None


class System(_Data):
    """One system that compiles at run time."""

    needs: tuple[str, ...]
    link: str


class Switch(_Data):
    """A variable whose value changes what compiles, from a version of a package on."""

    system: str
    variable: str
    value: str
    package: str
    since: str
    modules: tuple[str, ...]
    effect: Effect
    why: str
    link: str

    def is_set(self, env: dict[str, str]) -> bool:
        """Whether the environment has the variable with such a value."""
        return fnmatch.fnmatchcase(env.get(self.variable, ""), self.value)

    def known_to(self, version: str | None) -> bool:
        """Whether the installed version reads the variable."""
        try:
            return Version(version or "0") >= Version(self.since)
        except InvalidVersion:
            return False


class Exempt(_Data):
    """Modules that no request asks for."""

    system: str
    modules: tuple[str, ...]
    why: str
    link: str


class AtImport(_Data):
    """Modules that importing the package asks for."""

    system: str
    modules: tuple[str, ...]


class Cost(_Data):
    """Published seconds of a first build; the first row that matches counts."""

    system: str
    modules: tuple[str, ...]
    seconds: float
    link: str


class Rules(_Data):
    """The whole of data/jit.toml."""

    need: tuple[Need, ...]
    systems: dict[str, System]
    switch: tuple[Switch, ...]
    tool_only: tuple[Exempt, ...]
    at_import: tuple[AtImport, ...]
    cost: tuple[Cost, ...]

    def needs_of(self, system: str, *more: str) -> tuple[Need, ...]:
        """Return a system's needs with ``more`` added, in the file's order."""
        wanted = {*self.systems[system].needs, *more}
        return tuple(need for need in self.need if need.id in wanted)

    def switches(self, system: str, module: str) -> tuple[Switch, ...]:
        """Return the switches that bear on a module."""
        return tuple(
            switch
            for switch in self.switch
            if switch.system == system and matches(module, switch.modules)
        )

    def exempt(self, system: str, module: str) -> Exempt | None:
        """Return why no request asks for a module, if so."""
        for row in self.tool_only:
            if row.system == system and matches(module, row.modules):
                return row
        return None

    def imported(self, system: str, module: str) -> bool:
        """Whether importing the package asks for the module."""
        return any(row.system == system and matches(module, row.modules) for row in self.at_import)

    def cost_of(self, system: str, module: str) -> Cost | None:
        """Return the published cost of a module's first build."""
        for row in self.cost:
            if row.system == system and matches(module, row.modules):
                return row
        return None


@functools.cache
def rules() -> Rules:
    """Read data/jit.toml."""
    place = resources.files("assembler.verify") / "data" / "jit.toml"
    return Rules.model_validate(tomllib.loads(place.read_text(encoding="utf-8")))
