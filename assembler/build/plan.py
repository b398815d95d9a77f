"""The build plan: which packages a profile has, which of them must be built, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from assembler.build.keys import SourceFile, explain, input_key, package_inputs
from assembler.build.normal import Stamp
from assembler.build.recipes import Rendered
from assembler.errors import BuildError


@dataclass(frozen=True)
class Planned:
    """One package of the plan, under its final name.

    ``why`` says what changed; empty when the channel has it already. ``after`` names the planned
    packages that must be in the channel first.
    """

    rendered: Rendered
    build: str
    key: str
    inputs: dict[str, Any]
    source_size: int
    after: tuple[str, ...]
    why: str

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
    """All packages of a profile, in an order in which they can be built."""

    packages: tuple[Planned, ...]
    stale: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def todo(self) -> tuple[Planned, ...]:
        """The packages that must be built."""
        return tuple(package for package in self.packages if not package.up_to_date)

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
) -> BuildPlan:
    """Return the plan; pure.

    ``recipe_inputs`` and ``sources`` go by recipe name; ``gfx_targets`` holds the recipes whose
    build sees the whole list. ``channel`` maps the path of each package in the channel to its
    ``info/assembler.json``.
    """
    keys: dict[str, list[str]] = {}
    packages: list[Planned] = []
    for item in _ordered(rendered):
        recipe = item.recipe.name
        files = sources.get(recipe, ())
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
