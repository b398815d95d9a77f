"""The build plan: which packages a profile has, which of them must be built, in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from assembler.build.compilation import PYTHON
from assembler.build.keys import SourceFile, explain, input_key, package_inputs
from assembler.build.needs import LITTLE, Needs
from assembler.build.normal import Stamp
from assembler.build.recipes import Rendered
from assembler.errors import BuildError, ConfigError
from assembler.variants import GFX_AXIS

# What a package requires that holds modules for one CPython.
PYTHON_ABI = "python_abi"
ITSELF = "itself"  # in place of python's key where that is being made
NO_PYTHON = (
    "the python that compiles its modules is not in the channel; build that too: "
    "`--only python`, or --up-to in place of --only"
)


@dataclass(frozen=True)
class Planned:
    """One package of the plan, under its final name.

    ``why`` says what changed; empty when the channel has it already. ``after`` names the planned
    packages that must be in the channel first. ``python`` are the channel's paths of the python
    that compiles its modules and of what that needs, python last; its own path when it is python,
    none when its modules stay uncompiled. ``lacks`` says what keeps it from being built: a source
    that is not fetched, a program that the machine has not.
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
    python: tuple[str, ...] = ()

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
    def is_python(self) -> bool:
        """Whether it compiles its modules itself."""
        return self.python == (self.path,)

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
        A package whose python is neither in the channel nor named lacks it.
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
        ready = {item.path for item in self.packages if item.up_to_date} | chosen
        kept = tuple(
            item
            if item.up_to_date or set(item.python) <= ready
            else replace(item, lacks=item.lacks or NO_PYTHON)
            for item in self.packages
            if item.path in chosen
        )
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


def _runtime(rendered: Iterable[Rendered], name: str) -> frozenset[str]:
    """Return a package and all that it needs at run time, as far as these recipes build it."""
    run: dict[str, set[str]] = {}
    for item in rendered:
        run.setdefault(item.name, set()).update(line.split()[0] for line in item.run)
    found: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name in run and name not in found:
            found.add(name)
            waiting += run[name]
    return frozenset(found)


def _compiled_by(item: Rendered, python: frozenset[str]) -> tuple[str, ...]:
    """Return the packages whose python compiles a package's modules, python last.

    ``python`` is its runtime; without a recipe for python nothing is compiled. Python compiles
    itself when it runs alone. Noarch packages are compiled where they are installed.
    """
    if item.subdir == "noarch":
        return ()
    if item.name in python:
        return (PYTHON,) if python == {item.name} else ()
    if any(line.split()[0] == PYTHON_ABI for line in item.run):
        return tuple(sorted(python, key=lambda name: (name == PYTHON, name)))
    return ()


def _needed(item: Rendered, names: Collection[str], python: frozenset[str]) -> frozenset[str]:
    """Return which of these packages must be in the channel before one is built."""
    return frozenset({*item.host, *_compiled_by(item, python)} & set(names)) - {item.name}


def _ordered(rendered: Iterable[Rendered], python: frozenset[str]) -> list[Rendered]:
    """Sort packages so that those needed to build a package come before it."""
    items = sorted(rendered, key=lambda item: (item.name, item.build))
    names = {item.name for item in items}
    done: set[str] = set()
    order: list[Rendered] = []
    while items:
        ready = [item for item in items if not _needed(item, names, python) - done]
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
    rendered = list(rendered)
    python = _runtime(rendered, PYTHON)
    names = {item.name for item in rendered}
    keys: dict[str, list[str]] = {}
    paths: dict[str, str] = {}
    packages: list[Planned] = []
    for item in _ordered(rendered, python):
        compiled_by = _compiled_by(item, python)
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
            python=" ".join(keys.get(PYTHON, (ITSELF,))) if compiled_by else "",
        )
        key = input_key(inputs)
        keys.setdefault(item.name, []).append(key)
        build = Stamp(key, inputs).build_string(item.build)
        path = f"{item.subdir}/{item.name}-{item.version}-{build}.conda"
        paths[item.name] = path
        present = channel.get(path, {}).get("input_key") == key
        packages.append(
            Planned(
                rendered=item,
                build=build,
                key=key,
                inputs=inputs,
                source_size=sum(file.size for file in files),
                after=tuple(sorted(_needed(item, names, python))),
                why="" if present else explain(_predecessor(inputs, channel), inputs),
                needs=(needs or {}).get(recipe, LITTLE),
                lacks=(lacks or {}).get(recipe, ""),
                python=tuple(paths[name] for name in compiled_by),
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
