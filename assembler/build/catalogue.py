"""recipes/README.md: every package of every profile, rendered from the recipes and their pins.

``python -m assembler.build.catalogue`` writes it; a test fails when it is stale. Nothing need be
fetched, and what a user fetched or gave does not show.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.filesize import decimal

from assembler.build.needs import Machine
from assembler.build.plan import BuildPlan, Planned
from assembler.build.stack import StackRecipes, plan_stack, read_recipes
from assembler.sources.pins import Pin, Wheel, read_pins
from assembler.stack import Profile
from assembler.variants import GFX_AXIS
from assembler.workspace import Workspace

HEAD = """# Packages

<!-- Made by `python -m assembler.build.catalogue` from the recipes and their pins. -->

How a recipe is made, pinned and built: [docs/reference/recipes.md](../docs/reference/recipes.md).
Sizes are those of the pinned source files; — where none is recorded.
"""
COLUMNS = ("package", "version", "build", "source", "license", "GPU targets", "source size")
# Rows of the rocm profile that its table shows; other choices are in docs/how-to/rocm-node.md.
CHOICES: tuple[Mapping[str, str], ...] = ({}, {"rocm": "10.0"})
SOURCE_WORDS = {"pypi": "wheel", "url": "file", "debian": "Debian", "path": "your checkout"}


def untouched(workspace: Workspace, folder: Path) -> Workspace:
    """Return the workspace as it is in a fresh checkout: nothing fetched, given or built."""
    return dataclasses.replace(workspace, build=folder, channel=folder / "channel")


def rendered(workspace: Workspace, profile: Profile) -> tuple[StackRecipes, BuildPlan]:
    """Render a profile's recipes from a fresh checkout's point of view."""
    stack = read_recipes(workspace, profile)
    return stack, plan_stack(workspace, stack, profile, Machine.here())


def _source(pins: Iterable[Pin]) -> str:
    words: list[str] = []
    pins = list(pins)
    debian = [pin for pin in pins if pin.kind == "debian"]
    if debian:
        words.append(f"{len(debian)} Debian packages of {debian[0].suite}")
    for pin in pins:
        if pin.kind == "git":
            words.append(f"{_repository(pin.url or '')} {(pin.commit or '')[:12]}")
        elif pin.kind != "debian":
            words.append(
                f"{SOURCE_WORDS[pin.kind]} {pin.name}".replace("checkout atom", "checkout")
            )
    return ", ".join(dict.fromkeys(words)) or "—"


def _repository(url: str) -> str:
    return url.removeprefix("https://github.com/").removesuffix(".git")


def _row(group: list[Planned], pins: tuple[Pin, ...]) -> tuple[str, ...]:
    first = group[0].rendered
    targets = sorted({item.rendered.variant.get(GFX_AXIS, "") for item in group} - {""})
    name = first.name
    for target in targets:
        name = name.replace(target, "*")
    own = [pin for pin in pins if pin.target in (None, *targets)]
    if not targets:
        own = [pin for pin in own if pin.target is None]
    sizes = [pin.size for pin in own]
    known = bool(own) and all(size is not None for size in sizes)
    build = re.sub(r"_?h[0-9a-f]{7}(_0$)?", "", first.build)
    for target in targets:
        build = build.replace(target, "*")
    return (
        f"`{name}`",
        first.version,
        build or "—",
        _source(own),
        first.license,
        ", ".join(targets) or "—",
        decimal(sum(size or 0 for size in sizes)) if known else "—",
    )


def _table(stack: BuildPlan, pins: Mapping[str, tuple[Pin, ...]]) -> str:
    groups: dict[tuple[str, ...], list[Planned]] = {}
    for item in stack.packages:
        one = item.rendered
        target = one.variant.get(GFX_AXIS)
        if one.build.startswith("all_"):
            continue  # the selector's build for all targets; the row of single ones says it
        name = one.name.replace(target, "*") if target else one.name
        groups.setdefault((name, one.version), []).append(item)
    rows = sorted(
        _row(group, pins.get(group[0].rendered.recipe.name, ())) for group in groups.values()
    )
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def catalogue(workspace: Workspace) -> str:
    """Return the page."""
    parts = [HEAD]
    with tempfile.TemporaryDirectory(prefix="assembler-catalogue-") as scratch:
        fresh = untouched(workspace, Path(scratch))
        for profile in workspace.stack().profile.values():
            for choice in CHOICES if "rocm" in profile.choose else ({},):
                one = profile.with_variants(choice)
                pins = read_pins(fresh, one, unpinned=True)
                _stack, found = rendered(fresh, one)
                title = f"{one.pin_table}" + "".join(f", {k} {v}" for k, v in choice.items())
                parts.append(f"\n## Profile {title}\n\n{profile.summary}.\n\n")
                parts.append(_table(found, pins))
                wheels = [pin for group in pins.values() for pin in group if isinstance(pin, Wheel)]
                if wheels:
                    size = decimal(sum(pin.size or 0 for pin in wheels))
                    parts.append(
                        f"\nAnd {len(wheels)} dependencies from PyPI ({size}), pinned in "
                        f"[{one.wheels}](../{one.wheels}).\n"
                    )
                parts += [
                    f"\n`{name}` comes from your checkout: `--source {name}=PATH`.\n"
                    for name in found.left_out
                ]
    return "".join(parts)


def main() -> None:
    """Write the page into the project of the current folder."""
    workspace = Workspace.at(Path.cwd())
    (workspace.recipes / "README.md").write_text(catalogue(workspace), encoding="utf-8")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
