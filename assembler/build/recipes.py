"""Recipes as they are rendered: which packages they give, with which variant.

A recipe is a folder with recipe.yaml (schema v1). Rendering is rattler-build's own; what is added
here is the gfx selector's build for all targets (``extra: {all_targets: true}``), which no single
variant can describe.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rattler_build import RattlerBuildError, Stage0Recipe, VariantConfig
from rattler_build.render import RenderedVariant

from assembler.errors import BuildError, ConfigError
from assembler.variants import Axes

ALL_TARGETS = "all"


def load_yaml(text: str) -> Any:
    """Return YAML as plain data, read by libyaml where PyYAML has it: ten times faster."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def dump_yaml(data: dict[str, Any]) -> str:
    """Return plain data as YAML, keys in their order, no line ever folded."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(
        yaml.dump(dict(data), Dumper=dumper, sort_keys=False, allow_unicode=True, width=10_000)
    )


@dataclass(frozen=True)
class Recipe:
    """A recipe file and the folder whose files its input key covers."""

    name: str
    file: Path
    inputs: Path

    def read(self) -> dict[str, Any]:
        """Return recipe.yaml as plain data."""
        try:
            data = load_yaml(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"there is no recipe {self.name!r} ({self.file})",
                remedy="correct the profile's recipes in stack.toml",
            ) from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.file} is not valid YAML ({' '.join(str(error).split())})",
                remedy="correct it",
            ) from None
        if not isinstance(data, dict):
            raise ConfigError(f"{self.file} is not a recipe", remedy="write a recipe (schema v1)")
        return data


@dataclass(frozen=True)
class Rendered:
    """One package that a recipe gives, before it has its input key.

    ``build`` still holds rattler-build's variant hash. ``variant`` has only the keys the recipe
    used. ``host`` are the names of the packages installed while it is built.
    """

    recipe: Recipe
    file: Path
    name: str
    version: str
    build: str
    number: int
    subdir: str
    variant: dict[str, str]
    host: tuple[str, ...]
    run: tuple[str, ...]
    license: str = ""


def _names(requirements: Iterable[Any]) -> tuple[str, ...]:
    return tuple(sorted({str(item).split()[0] for item in requirements if isinstance(item, str)}))


def _convert(recipe: Recipe, file: Path, rendered: RenderedVariant) -> Rendered:
    data = rendered.recipe.to_dict()
    package, build = data["package"], data["build"]
    requirements = data.get("requirements", {})
    noarch = build.get("noarch")
    variant = {key: str(value) for key, value in rendered.variant.items()}
    platform = variant.pop("target_platform", "linux-64")
    return Rendered(
        recipe=recipe,
        file=file,
        name=str(package["name"]),
        version=str(package["version"]),
        build=str(build["string"]),
        number=int(build.get("number", 0)),
        subdir="noarch" if noarch else platform,
        variant=variant,
        host=_names([*requirements.get("host", ()), *requirements.get("build", ())]),
        run=tuple(sorted(str(item) for item in requirements.get("run", ()))),
        license=str((data.get("about") or {}).get("license", "")),
    )


def render_variants(file: Path, axes: Axes) -> list[RenderedVariant]:
    """Render one recipe file with rattler-build; BuildError says what it does not understand."""
    config = VariantConfig(
        {key: list(values) for key, values in axes.values.items()},
        zip_keys=[list(group) for group in axes.zip_keys],
    )
    try:
        return Stage0Recipe.from_file(file).render(config)
    except (RattlerBuildError, RuntimeError, ValueError) as error:
        words = " ".join(str(error).split())
        raise BuildError(
            f"{file} cannot be rendered ({words})", remedy="correct the recipe"
        ) from None


def render(recipe: Recipe, axes: Axes, generated: Path) -> tuple[Rendered, ...]:
    """Return every package of a recipe, each once, in the order of their names and builds.

    ``generated`` is where the all-targets build of a selector is written as a recipe of its own.
    """
    data = recipe.read()
    found = {
        (item.name, item.version, item.build): item
        for item in (
            _convert(recipe, recipe.file, rendered)
            for rendered in render_variants(recipe.file, axes)
        )
    }
    if (data.get("extra") or {}).get("all_targets"):
        every = _all_targets(data, tuple(found.values()))
        file = generated / recipe.name / "recipe.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dump_yaml(every), encoding="utf-8")
        for rendered in render_variants(file, axes):
            item = _convert(recipe, file, rendered)
            found[item.name, item.version, item.build] = item
    return tuple(found[key] for key in sorted(found))


def _all_targets(data: dict[str, Any], singles: tuple[Rendered, ...]) -> dict[str, Any]:
    """Return a selector's recipe for every target: the union of the single targets' requirements.

    Its build number is one above theirs, so that solvers prefer it unless a target is asked for.
    """
    every = copy.deepcopy(data)
    every["build"] |= {
        "number": max(item.number for item in singles) + 1,
        "string": f"{ALL_TARGETS}_h${{{{ hash }}}}_{max(item.number for item in singles) + 1}",
    }
    every["requirements"] = {"run": sorted({need for item in singles for need in item.run})}
    every.pop("extra", None)
    return every
