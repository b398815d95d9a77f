"""What a profile is built from: recipes, written by hand or derived from wheels, and sources."""

from __future__ import annotations

import tarfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
import yaml

from assembler.build.keys import SCRIPTS, SourceFile, recipe_inputs
from assembler.build.normal import read_stamp
from assembler.build.plan import BuildPlan, make_plan
from assembler.build.recipes import Recipe, Rendered, Variants, load_variants, render
from assembler.build.requirements import conda_requirements
from assembler.build.wheels import WheelMetadata, matching_rules, wheel_recipe
from assembler.digest import sha256_file
from assembler.errors import BuildError, ConfigError
from assembler.sources.fetch import VARIANTS_FILE, read_fetched
from assembler.sources.pins import Pin, Wheel, read_pins
from assembler.stack import Profile
from assembler.targets import check_targets
from assembler.workspace import Workspace

GFX_AXIS = "gfx_target"


@dataclass(frozen=True)
class StackRecipes:
    """The recipes of a profile, the variant axes they are rendered with, and their source files."""

    recipes: tuple[Recipe, ...]
    variants: Variants
    sources: Mapping[str, tuple[SourceFile, ...]]
    gfx_targets: tuple[str, ...]
    left_out: tuple[str, ...]
    generated: Path


def _source_files(folder: Path, pins: Iterable[Pin]) -> tuple[SourceFile, ...]:
    """Return the fetched files of a recipe, with the hashes of the pins that name them."""
    hashes = {pin.file: pin.sha256 for pin in pins if pin.sha256}
    if not folder.is_dir():
        return ()
    return tuple(
        SourceFile(path.name, hashes.get(path.name) or sha256_file(path), path.stat().st_size)
        for path in sorted(folder.iterdir())
        if path.is_file()
    )


def _require_fetched(name: str, files: tuple[SourceFile, ...], pins: tuple[Pin, ...]) -> None:
    missing = {pin.file for pin in pins if pin.file} - {file.file for file in files}
    if missing:
        raise BuildError(
            f"{sorted(missing)[0]} of recipe {name!r} is not in the store",
            remedy="run `assembler fetch` first",
        )


def _write(file: Path, recipe: Mapping[str, Any]) -> None:
    """Write a derived recipe when it differs from the one that is there."""
    _write_text(
        file, yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True, width=10_000)
    )


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
        raise BuildError(f"no source tree of {recipe.name} was fetched", remedy="fetch it again")
    folder = generated / recipe.name
    run = {*data["requirements"]["run"], *_declared_requirements(archive, file, profile.python)}
    data["requirements"]["run"] = sorted(run)
    up = _up(folder, workspace.root)
    data["source"] = {"path": f"{up}/{sources.relative_to(workspace.root).as_posix()}"}
    _write(folder / "recipe.yaml", data)
    return Recipe(recipe.name, folder / "recipe.yaml", recipe.inputs)


def read_recipes(workspace: Workspace, profile: Profile) -> StackRecipes:
    """Collect a profile's recipes, after fetch; BuildError when a source is not there yet."""
    pins = read_fetched(workspace, profile)
    sources = workspace.sources(profile)
    generated = workspace.build / "recipes" / profile.name
    axes = load_variants(
        [*(workspace.root / file for file in profile.variants), sources / VARIANTS_FILE],
        {"profile": [profile.name], "python_version": [profile.python]},
    )
    if GFX_AXIS not in axes:
        raise ConfigError(
            f"no variant file of profile {profile.name!r} has {GFX_AXIS}",
            remedy="add the list of GPU targets to recipes/variants.yaml",
        )
    targets = check_targets(axes[GFX_AXIS])
    files = {name: _source_files(sources / name, group) for name, group in pins.items()}
    for name, group in pins.items():
        _require_fetched(name, files[name], group)
    left_out = tuple(
        name
        for name in profile.recipes
        if name not in pins and read_pins(workspace, profile).get(name)
    )
    recipes: list[Recipe] = []
    for name in profile.recipes:
        if name not in left_out:
            folder = workspace.recipes / name
            recipe = Recipe(name, folder / "recipe.yaml", folder)
            recipes.append(_expanded(workspace, profile, recipe, generated))
    rules = _wheel_rules(workspace, profile)
    for _name, group in sorted(pins.items()):
        recipes += [
            _wheel(workspace, profile, pin, generated, rules)
            for pin in group
            if isinstance(pin, Wheel)
        ]
    return StackRecipes(
        tuple(recipes), {**axes, GFX_AXIS: targets}, files, targets, left_out, generated
    )


def channel_stamps(channel: Path) -> dict[str, dict[str, Any]]:
    """Return path -> ``info/assembler.json`` of every package in the channel."""
    return {
        path.relative_to(channel).as_posix(): read_stamp(path)
        for path in sorted(channel.glob("*/*.conda"))
    }


def plan_stack(workspace: Workspace, stack: StackRecipes, profile: Profile) -> BuildPlan:
    """Render every recipe and compare it with the channel."""
    scripts = workspace.recipes / SCRIPTS
    rendered: list[Rendered] = []
    inputs: dict[str, dict[str, Any]] = {}
    sees_targets: dict[str, tuple[str, ...]] = {}
    for recipe in stack.recipes:
        rendered += render(recipe, stack.variants, stack.generated)
        inputs[recipe.name] = recipe_inputs(recipe, scripts)
        if (recipe.read().get("extra") or {}).get("sees_all_targets"):
            sees_targets[recipe.name] = stack.gfx_targets
    plan = make_plan(
        rendered,
        profile=profile.name,
        recipe_inputs=inputs,
        sources=stack.sources,
        gfx_targets=sees_targets,
        channel=channel_stamps(workspace.channel),
    )
    return BuildPlan(plan.packages, plan.stale, stack.left_out)
