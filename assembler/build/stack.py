"""What a profile is built from: recipes, written by hand or derived from wheels, and sources."""

from __future__ import annotations

import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
import zstandard

from assembler.build.keys import SCRIPTS, SourceFile, recipe_inputs
from assembler.build.needs import Machine, Needs, read_needs
from assembler.build.normal import read_stamp
from assembler.build.plan import BuildPlan, make_plan
from assembler.build.recipes import Recipe, Rendered, dump_yaml, render
from assembler.build.requirements import conda_requirements
from assembler.build.wheels import WheelMetadata, matching_rules, wheel_recipe
from assembler.channel.guard import reading
from assembler.digest import sha256_file
from assembler.errors import BuildError, ConfigError
from assembler.sources.debian import upstream_version
from assembler.sources.entries import recipe_folder, recipe_name
from assembler.sources.fetch import PINS_FILE, read_fetched, variant_key
from assembler.sources.pins import Pin, Unpinned, Wheel, read_pins, source_folder
from assembler.stack import Profile
from assembler.variants import FAMILY_AXIS, GFX_AXIS, Axes, read_axes
from assembler.workspace import Workspace

# What reading a package that is not whole may raise; RuntimeError when it lacks a component.
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zstandard.ZstdError, ValueError, RuntimeError)


@dataclass(frozen=True)
class StackRecipes:
    """The recipes of a profile, the variant axes they are rendered with, and their source files.

    ``lacks`` says by recipe which source is not pinned or not fetched. A wheel that lacks is none
    of the ``recipes``, but named in ``unfetched``.
    """

    recipes: tuple[Recipe, ...]
    axes: Axes
    sources: Mapping[str, tuple[SourceFile, ...]]
    gfx_targets: tuple[str, ...]
    left_out: tuple[str, ...]
    generated: Path
    lacks: Mapping[str, str]
    unfetched: tuple[str, ...] = ()


def _source_files(
    sources: Path, recipe: str, pins: Iterable[Pin]
) -> tuple[tuple[SourceFile, ...], str]:
    """Return a recipe's source files, and which of them is missing in words.

    Their hashes are the pins'; only what has none (a file laid there by hand) is read.
    """
    found: dict[str, SourceFile] = {}
    lacks = ""
    for pin in pins:
        path = sources / source_folder(recipe, pin) / pin.file
        if isinstance(pin, Unpinned):
            lacks = lacks or f"{pin.label} is not pinned; run `assembler pin`"
        elif not path.is_file():
            lacks = lacks or f"{pin.file} is not fetched; run `assembler fetch`"
        found[pin.file or pin.label] = SourceFile(
            pin.file or pin.label, pin.sha256, pin.size or 0, pin.target
        )
    folder = sources / recipe
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and path.name not in found:
            found[path.name] = SourceFile(path.name, sha256_file(path), path.stat().st_size)
    return tuple(found[name] for name in sorted(found)), lacks


def _write(file: Path, recipe: dict[str, Any]) -> None:
    """Write a derived recipe when it differs from the one that is there."""
    _write_text(file, dump_yaml(recipe))


def _write_text(file: Path, text: str) -> None:
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def _up(folder: Path, root: Path) -> str:
    """Return the relative path from a folder below ``root`` up to it."""
    return "/".join([".."] * len(folder.relative_to(root).parts))


def _wheel_rules(workspace: Workspace, profile: Profile) -> list[dict[str, Any]]:
    """Return the rules beside the profile's wheel list: what no wheel's package needs."""
    if profile.wheels is None:
        return []
    file = (workspace.root / profile.wheels).with_name("parts.toml")
    if not file.is_file():
        return []
    try:
        rules: list[dict[str, Any]] = tomllib.loads(file.read_text(encoding="utf-8"))["leave_out"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise ConfigError(
            f"{file} has no valid [[leave_out]] ({error})", remedy="correct it"
        ) from None
    return rules


def _wheel(
    workspace: Workspace,
    profile: Profile,
    pin: Wheel,
    generated: Path,
    rules: list[dict[str, Any]],
) -> Recipe:
    folder = generated / pin.conda_name
    up = _up(folder, workspace.root)
    sources = workspace.sources(profile) / pin.conda_name
    metadata = WheelMetadata.read(sources / pin.file)
    recipe = wheel_recipe(
        metadata,
        pin.conda_name,
        profile.python,
        f"{up}/{sources.relative_to(workspace.root).as_posix()}",
        f"{up}/{workspace.recipes.relative_to(workspace.root).as_posix()}/{SCRIPTS}/wheel.py",
    )
    _write(folder / "recipe.yaml", recipe)
    parts = tomlkit.dumps({"leave_out": matching_rules(rules, pin.conda_name, metadata.files)})
    _write_text(folder / "parts.toml", parts)
    return Recipe(pin.conda_name, folder / "recipe.yaml", folder)


def _declared_requirements(archive: Path, file: str, python: str) -> tuple[str, ...]:
    """Return the requirements that a source tree declares in its pyproject.toml."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name.split("/")[1:] == [file]:
                stream = tar.extractfile(member)
                data = tomllib.loads(stream.read().decode()) if stream else {}
                lines = data.get("project", {}).get("dependencies", [])
                return conda_requirements(lines, python, where=archive.name)
    raise BuildError(
        f"{archive.name} has no {file}", remedy="give a source tree that can be built with pip"
    )


def _expanded(workspace: Workspace, profile: Profile, recipe: Recipe, generated: Path) -> Recipe:
    """Add what a source tree declares to a recipe with ``extra: {requirements_from: FILE}``."""
    data = recipe.read()
    file = (data.get("extra") or {}).get("requirements_from")
    if not file:
        return recipe
    sources = workspace.sources(profile) / recipe.name
    archive = next(iter(sorted(sources.glob("*.tar"))), None)
    if archive is None:
        return recipe  # listed before it is fetched
    folder = generated / recipe.name
    run = {*data["requirements"]["run"], *_declared_requirements(archive, file, profile.python)}
    data["requirements"]["run"] = sorted(run)
    up = _up(folder, workspace.root)
    data["source"] = {"path": f"{up}/{sources.relative_to(workspace.root).as_posix()}"}
    # Scripts are named relative to the recipe that was written by hand.
    old, new = "$RECIPE_DIR/", f"$RECIPE_DIR/{up}/{recipe.inputs.relative_to(workspace.root)}/"
    data["build"]["script"] = [line.replace(old, new) for line in data["build"]["script"]]
    _write(folder / "recipe.yaml", data)
    return Recipe(recipe.name, folder / "recipe.yaml", recipe.inputs)


def _current_pins(
    workspace: Workspace, profile: Profile
) -> tuple[dict[str, tuple[Pin, ...]], tuple[str, ...]]:
    """Return the pins by recipe, trees that the user gave in their places, and what is left out.

    Left out are the recipes whose source only the user can give and did not. Pins may be
    incomplete, and nothing need be fetched.
    """
    pins = read_pins(workspace, profile, unpinned=True)
    fetched: dict[str, tuple[Pin, ...]] = {}
    if (workspace.sources(profile) / PINS_FILE).exists():
        fetched = read_fetched(workspace, profile)
    current: dict[str, tuple[Pin, ...]] = {}
    left_out: list[str] = []
    for recipe, group in pins.items():
        given = {pin.name: pin for pin in fetched.get(recipe, ()) if pin.kind == "path"}
        here = tuple(given.get(pin.name, pin) for pin in group)
        here = tuple(pin for pin in here if pin.kind != "path" or pin.sha256)
        if here:
            current[recipe] = here
        else:
            left_out.append(recipe)
    return current, tuple(left_out)


def _axes(workspace: Workspace, profile: Profile, pins: Mapping[str, tuple[Pin, ...]]) -> Axes:
    """Return the axes that recipes are rendered with: variant files, choices, pinned versions."""
    axes = read_axes(workspace.variant_files(profile)).choose(profile.choose)
    own = {"profile": (profile.name,), "python_version": (profile.python,)}
    for pin in (pin for group in pins.values() for pin in group):
        version = upstream_version(pin.version) if pin.kind == "debian" else pin.version
        key = variant_key(pin.name)
        if version and pin.kind != "path" and axes.values.get(key, (version,)) != (version,):
            raise ConfigError(
                f"the variant files say {key} {', '.join(axes.values[key])} and its pin says "
                f"{version}",
                remedy="correct one of the two: what belongs together moves together",
            )
        if version:
            own[key] = (version,)
    return axes.override(own | {GFX_AXIS: axes.gfx_targets, FAMILY_AXIS: axes.gfx_families})


def read_recipes(workspace: Workspace, profile: Profile) -> StackRecipes:
    """Collect a profile's recipes and sources; what is not fetched or not pinned is noted."""
    sources = workspace.sources(profile)
    pins, left_out = _current_pins(workspace, profile)
    axes = _axes(workspace, profile, pins)
    generated = workspace.build / "recipes" / profile.name
    files: dict[str, tuple[SourceFile, ...]] = {}
    lacks: dict[str, str] = {}
    for name, group in pins.items():
        files[name], missing = _source_files(sources, name, group)
        lacks |= {name: missing} if missing else {}
    recipes: list[Recipe] = []
    for listed in profile.recipes:
        name = recipe_name(listed)
        if name not in left_out:
            folder = recipe_folder(workspace, listed)
            recipe = Recipe(name, folder / "recipe.yaml", folder)
            recipes.append(_expanded(workspace, profile, recipe, generated))
    rules = _wheel_rules(workspace, profile)
    for _name, group in sorted(pins.items()):
        recipes += [
            _wheel(workspace, profile, pin, generated, rules)
            for pin in group
            if isinstance(pin, Wheel) and _name not in lacks
        ]
    unfetched = tuple(
        sorted(
            name
            for name, group in pins.items()
            if name in lacks and any(isinstance(pin, Wheel) for pin in group)
        )
    )
    return StackRecipes(
        tuple(recipes), axes, files, axes.gfx_targets, left_out, generated, lacks, unfetched
    )


def channel_stamps(channel: Path) -> dict[str, dict[str, Any]]:
    """Return path -> ``info/assembler.json`` of every package in the channel.

    A damaged package has none, so that it is built again. Raises ChannelError for what may not be
    read.
    """
    with reading(channel):
        return {
            path.relative_to(channel).as_posix(): _stamp(path)
            for path in sorted(channel.glob("*/*.conda"))
            if path.is_file()
        }


def _stamp(package: Path) -> dict[str, Any]:
    try:
        return read_stamp(package)
    except DAMAGED:
        return {}


def plan_stack(
    workspace: Workspace, stack: StackRecipes, profile: Profile, machine: Machine
) -> BuildPlan:
    """Render every recipe and compare it with the channel; note what the machine lacks.

    While wheels are not fetched nothing is stale: packages in the channel may be theirs.
    """
    scripts = workspace.recipes / SCRIPTS
    rendered: list[Rendered] = []
    inputs: dict[str, dict[str, Any]] = {}
    sees_targets: dict[str, tuple[str, ...]] = {}
    needs: dict[str, Needs] = {}
    lacks = dict(stack.lacks)
    for recipe in stack.recipes:
        rendered += render(recipe, stack.axes, stack.generated)
        inputs[recipe.name] = recipe_inputs(recipe, scripts)
        data = recipe.read()
        needs[recipe.name] = read_needs(data, stack.axes.values, f"recipe {recipe.name!r}")
        if words := lacks.get(recipe.name) or machine.lacks(needs[recipe.name]):
            lacks[recipe.name] = words
        if (data.get("extra") or {}).get("sees_all_targets"):
            sees_targets[recipe.name] = stack.gfx_targets
    plan = make_plan(
        rendered,
        profile=profile.name,
        recipe_inputs=inputs,
        sources=stack.sources,
        gfx_targets=sees_targets,
        channel=channel_stamps(workspace.channel),
        needs=needs,
        lacks=lacks,
    )
    stale = () if stack.unfetched else plan.stale
    return BuildPlan(plan.packages, stale, stack.left_out, stack.unfetched)
