"""Input keys: what a package is made of, as one digest.

Two packages with one key are the same bytes; a package whose key is in the channel is not built
again. The key covers every file of the recipe, the shared scripts it calls, the sources, the
variant it used, the gfx list when its build sees one, the keys of its host packages and of the
python that compiles its modules, and the builder itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard
from rattler_build import rattler_build_version

from assembler.build.normal import FORMAT
from assembler.build.recipes import Recipe, Rendered
from assembler.digest import digest_of, sha256_file

SCRIPTS = "_scripts"
CALL = re.compile(rf"/{SCRIPTS}/([A-Za-z0-9_]+\.[a-z]+)")
# Pins have their own place in the key; notes beside them change nothing.
NOT_INPUTS = ("sources.toml",)


@dataclass(frozen=True)
class SourceFile:
    """A fetched file that a recipe reads; ``target`` when only one GPU target's package does."""

    file: str
    sha256: str
    size: int
    target: str | None = None


def folder_digests(folder: Path) -> dict[str, str]:
    """Return relative path -> SHA-256 of every file below a folder, caches excepted."""
    return {
        path.relative_to(folder).as_posix(): sha256_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.name not in NOT_INPUTS
    }


def recipe_inputs(recipe: Recipe, scripts: Path) -> dict[str, Any]:
    """Return the digests of a recipe's own files and of the shared scripts that they call."""
    inputs: dict[str, Any] = {"recipe": folder_digests(recipe.inputs)}
    called: set[str] = set()
    for path in recipe.inputs.glob("*.*"):
        if path.suffix in {".yaml", ".sh", ".py"}:
            called |= set(CALL.findall(path.read_text(encoding="utf-8", errors="replace")))
    if called:
        inputs["scripts"] = {
            name: sha256_file(scripts / name)
            for name in sorted(called)
            if (scripts / name).exists()
        }
    return inputs


def package_inputs(
    rendered: Rendered,
    base: Mapping[str, Any],
    *,
    profile: str,
    sources: Iterable[SourceFile],
    host_keys: Mapping[str, str],
    gfx_targets: tuple[str, ...] | None,
    python: str = "",
) -> dict[str, Any]:
    """Return everything that a package's bytes depend on, as plain data.

    ``gfx_targets`` is the whole list for a build that sees it, else None: then a package does not
    change when a target is added elsewhere. ``python`` is the key of the python that compiles the
    package's modules, empty when none does.
    """
    return {
        **base,
        **({"python": python} if python else {}),
        "builder": {
            "format": FORMAT,
            "rattler-build": rattler_build_version(),
            "zstandard": zstandard.__version__,
        },
        "package": f"{rendered.name} {rendered.version} {_family(rendered.build)}",
        "profile": profile,
        "requirements": list(rendered.run),
        "sources": {source.file: source.sha256 for source in sources},
        "variant": rendered.variant,
        "host": dict(host_keys),
        "gfx": list(gfx_targets) if gfx_targets is not None else None,
    }


def input_key(inputs: Mapping[str, Any]) -> str:
    """Return the key of a package's inputs: 64 hexadecimal digits."""
    return digest_of(inputs)


def _family(build: str) -> str:
    """Return a build string without its hash: what tells a recipe's builds apart."""
    return re.sub(r"h[0-9a-f]{7}", "h", build, count=1)


def explain(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> str:
    """Say in a few words why a package must be built, given its predecessor's inputs."""
    if not old:
        return "not in the channel"
    changed: list[str] = []
    for group in sorted({*old, *new}):
        before, after = old.get(group), new.get(group)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            names = sorted(
                name for name in {*before, *after} if before.get(name) != after.get(name)
            )
            changed.append(f"{group}: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}")
        else:
            changed.append(group)
    return f"changed {'; '.join(changed)}" if changed else "its file is gone"
