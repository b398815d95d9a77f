"""The build plan: which packages a profile has, which of them must be built, in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from assembler.build.keys import SourceFile, explain, input_key, package_inputs
from assembler.build.needs import LITTLE, Needs
from assembler.build.normal import Stamp
from assembler.build.recipes import Rendered
from assembler.errors import BuildError, ConfigError
from assembler.variants import GFX_AXIS


@dataclass(frozen=True)
class Planned:
    """One package of the plan, under its final name.

    ``why`` says what changed; empty when the channel has it already. ``after`` names the planned
    packages that must be in the channel first. ``lacks`` says what keeps it from being built: a
    source that is not fetched, a program that the machine has not.
    """

    rendered: Rendered
    build: str
    key: str
    inputs: dict[str, Any]
    source_size: int
    after: tuple[str, ...]
    why: str
    needs: Needs = LITTLE
    lacks: str = ""

    @property
    def up_to_date(self) -> bool:
        """Whether the channel has this very package."""
        return not self.why

    @property
    def file(self) -> str:
        """The package's file name."""
        return f"{self.rendered.name}-{self.rendered.version}-{self.build}.conda"

    @property
    def path(self) -> str:
        """The package's path in the channel."""
        return f"{self.rendered.subdir}/{self.file}"

    @property
    def label(self) -> str:
        """How messages call the package."""
        return f"{self.rendered.name} {self.rendered.version} {self.build}"


@dataclass(frozen=True)
class BuildPlan:
    """All packages of a profile, in an order in which they can be built.

    ``unfetched`` names the wheels that are not here: what packages they give is only known from
    the wheels themselves, so that they are not among ``packages`` and nothing is stale.
    """

    packages: tuple[Planned, ...]
    stale: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    unfetched: tuple[str, ...] = ()

    @property
    def todo(self) -> tuple[Planned, ...]:
        """The packages that must be built."""
        return tuple(package for package in self.packages if not package.up_to_date)

    def select(self, only: Collection[str], up_to: Collection[str]) -> BuildPlan:
        """Return the plan with nothing to build but the named packages or recipes.

        ``up_to`` adds all that these are built with and need at run time. Patterns such as
        ``amd-aiter*`` are understood; ConfigError when one names nothing. Nothing is stale then.
        """
        if not only and not up_to:
            return self
        chosen = {item.path for item in self._named(only)}
        todo = list(self._named(up_to))
        by_name: dict[str, list[Planned]] = {}
        for item in self.packages:
            by_name.setdefault(item.rendered.name, []).append(item)
        while todo:
            item = todo.pop()
            if item.path not in chosen:
                chosen.add(item.path)
                needed = {*item.after, *(line.split()[0] for line in item.rendered.run)}
                todo += [one for name in needed for one in by_name.get(name, ())]
        kept = tuple(item for item in self.packages if item.path in chosen)
        return BuildPlan(kept, (), self.left_out, self.unfetched)

    def _named(self, patterns: Collection[str]) -> list[Planned]:
        found: list[Planned] = []
        for pattern in patterns:
            hits = [
                item
                for item in self.packages
                if fnmatchcase(item.rendered.name, pattern)
                or fnmatchcase(item.rendered.recipe.name, pattern)
            ]
            if not hits and not any(fnmatchcase(name, pattern) for name in self.unfetched):
                names = sorted({item.rendered.name for item in self.packages} | {*self.unfetched})
                near = get_close_matches(pattern, names, n=1)
                raise ConfigError(
                    f"no package or recipe of the profile is called {pattern!r}",
                    remedy=f"did you mean {near[0]!r}? `assembler build --list` names them"
                    if near
                    else "`assembler build --list` names them",
                )
            found += hits
        return found

    def waves(self) -> list[list[Planned]]:
        """Return the packages to build in steps: each needs only the channel and earlier steps."""
        waiting = {package.rendered.name for package in self.todo}
        remaining = list(self.todo)
        steps: list[list[Planned]] = []
        while remaining:
            ready = [item for item in remaining if not waiting.intersection(item.after)]
            remaining = [item for item in remaining if waiting.intersection(item.after)]
            # The largest first, so that no worker is left with it at the end.
            steps.append(sorted(ready, key=lambda item: (-item.source_size, item.label)))
            waiting -= {item.rendered.name for item in ready}
        return steps


def _ordered(rendered: Iterable[Rendered]) -> list[Rendered]:
    """Sort packages so that host packages come before what is built with them."""
    items = sorted(rendered, key=lambda item: (item.name, item.build))
    names = {item.name for item in items}
    done: set[str] = set()
    order: list[Rendered] = []
    while items:
        ready = [item for item in items if not (set(item.host) & names) - done - {item.name}]
        if not ready:
            cycle = ", ".join(sorted({item.name for item in items}))
            raise BuildError(
                f"the recipes {cycle} need each other to be built",
                remedy="break the cycle in their host requirements",
            )
        order += ready
        items = [item for item in items if item not in ready]
        done |= {item.name for item in ready} - {item.name for item in items}
    return order


def make_plan(
    rendered: Iterable[Rendered],
    *,
    profile: str,
    recipe_inputs: Mapping[str, Mapping[str, Any]],
    sources: Mapping[str, tuple[SourceFile, ...]],
    gfx_targets: Mapping[str, tuple[str, ...]],
    channel: Mapping[str, Mapping[str, Any]],
    needs: Mapping[str, Needs] | None = None,
    lacks: Mapping[str, str] | None = None,
) -> BuildPlan:
    """Return the plan; pure.

    ``recipe_inputs`` and ``sources`` go by recipe name; ``gfx_targets`` holds the recipes whose
    build sees the whole list. ``channel`` maps the path of each package in the channel to its
    ``info/assembler.json``. ``needs`` and ``lacks`` go by recipe name too.
    """
    keys: dict[str, list[str]] = {}
    packages: list[Planned] = []
    for item in _ordered(rendered):
        recipe = item.recipe.name
        target = item.variant.get(GFX_AXIS)
        files = [one for one in sources.get(recipe, ()) if one.target in (None, target)]
        inputs = package_inputs(
            item,
            recipe_inputs[recipe],
            profile=profile,
            sources=files,
            host_keys={name: " ".join(keys[name]) for name in item.host if name in keys},
            gfx_targets=gfx_targets.get(recipe),
        )
        key = input_key(inputs)
        keys.setdefault(item.name, []).append(key)
        build = Stamp(key, inputs).build_string(item.build)
        path = f"{item.subdir}/{item.name}-{item.version}-{build}.conda"
        present = channel.get(path, {}).get("input_key") == key
        packages.append(
            Planned(
                rendered=item,
                build=build,
                key=key,
                inputs=inputs,
                source_size=sum(file.size for file in files),
                after=tuple(name for name in item.host if name in keys),
                why="" if present else explain(_predecessor(inputs, channel), inputs),
                needs=(needs or {}).get(recipe, LITTLE),
                lacks=(lacks or {}).get(recipe, ""),
            )
        )
    planned = {package.path for package in packages}
    stale = tuple(
        sorted(
            path
            for path, stamp in channel.items()
            if path not in planned and stamp.get("inputs", {}).get("profile") == profile
        )
    )
    return BuildPlan(tuple(packages), stale)


def _predecessor(
    inputs: Mapping[str, Any], channel: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Return the inputs of the package in the channel that this one will replace."""
    name, _version, family = inputs["package"].split(" ")
    for stamp in channel.values():
        old: Mapping[str, Any] = stamp.get("inputs", {})
        parts = str(old.get("package", "")).split(" ")
        if (
            old.get("profile") == inputs["profile"]
            and parts[:1] == [name]
            and parts[2:] == [family]
        ):
            return old
    return None
