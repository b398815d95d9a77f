"""The unit that all systems report in, and what they share: needs, versions, targets of a file."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Literal

from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict

from assembler.verify.gfx import CodeObject, inventory_file
from assembler.verify.jit.rules import Need, Rules
from assembler.verify.policy import matches
from assembler.verify.tree import Tree

Verdict = Literal["prebuilt", "not-asked", "compiles", "cannot"]
ROCM_VARIABLES = ("ROCM_HOME", "ROCM_PATH", "HIP_PATH")
ROCM_FOLDERS = ("bin", "llvm/bin", "lib/llvm/bin")


class Unit(BaseModel):
    """One thing that may compile at run time.

    ``verdict``: ``prebuilt`` for every target; ``not-asked`` by any request; ``compiles`` at the
    first request, and the image has what that takes; ``cannot``: compiles, and the image lacks
    ``missing``. ``targets_missing`` are those that its prebuilt file lacks. ``seconds`` is an
    estimate from a published figure (``seconds_from``), never a measurement of this image.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    system: str
    name: str
    verdict: Verdict
    why: str
    link: str
    asked_by: tuple[str, ...] = ()
    at_import: bool = False
    missing: tuple[str, ...] = ()
    targets_missing: tuple[str, ...] = ()
    seconds: float | None = None
    seconds_from: str | None = None


def environment(tree: Tree) -> dict[str, str]:
    """Return the image's variables; a package has none."""
    return dict(tree.config.env) if tree.config is not None else {}


def missing_needs(tree: Tree, needs: Iterable[Need]) -> tuple[str, ...]:
    """Return what of the needs the tree lacks, in words."""
    return tuple(need.what for need in needs if not _has(tree, need))


@functools.lru_cache(maxsize=256)
def _has(tree: Tree, need: Need) -> bool:
    env = environment(tree)
    programs = [*need.programs]
    if need.variable and env.get(need.variable):
        programs = [env[need.variable].split()[0]]
    if any(find_program(tree, program) for program in programs):
        return True
    return any(True for path in tree.entries if matches(path, need.files)) if need.files else False


def find_program(tree: Tree, program: str) -> str | None:
    """Return a program's path: on PATH, or in a ROCm root that the image's Env or custom names."""
    if program.startswith("/"):
        entry = tree.file_at(program.lstrip("/"))
        return entry.path if entry is not None and entry.executable else None
    found = tree.which(program)
    if found is not None:
        return found
    for root in rocm_roots(tree):
        for folder in ROCM_FOLDERS:
            entry = tree.file_at(f"{root}/{folder}/{program}")
            if entry is not None and entry.executable:
                return entry.path
    return None


def rocm_roots(tree: Tree) -> tuple[str, ...]:
    """Return the folders that may be a ROCm root, as tree paths."""
    env = environment(tree)
    named = [env[name].lstrip("/") for name in ROCM_VARIABLES if env.get(name)]
    wheels = [
        path
        for path, entry in tree.entries.items()
        if entry.kind == "directory" and entry.name in ("_rocm_sdk_devel", "_rocm_sdk_core")
    ]
    prefix = [tree.prefix] if tree.prefix else []
    return tuple(dict.fromkeys([*named, *sorted(wheels), "opt/rocm", *prefix]))


def installed_version(tree: Tree, distribution: str) -> str | None:
    """Return the version of an installed Python distribution, from its dist-info folder."""
    wanted = canonicalize_name(distribution)
    for path in tree.entries:
        name = path.rpartition("/")[2]
        if name.endswith(".dist-info"):
            project, _, version = name.removesuffix(".dist-info").partition("-")
            if canonicalize_name(project) == wanted:
                return version
    return None


def package_folders(tree: Tree, marker: str) -> tuple[str, ...]:
    """Return the folders in which ``marker`` (a path inside a package) is found."""
    end = f"/{marker}"
    return tuple(
        sorted(
            path.removesuffix(marker).rstrip("/")
            for path, entry in tree.entries.items()
            if entry.kind == "file" and (path.endswith(end) or path == marker)
        )
    )


@functools.lru_cache(maxsize=4096)
def processors_of(tree: Tree, path: str) -> frozenset[str]:
    """Return the GPU processors that a file holds code for."""
    return frozenset(
        item.processor
        for item in inventory_file(tree.on_disk(path), path)
        if isinstance(item, CodeObject) and item.processor
    )


def lacking(tree: Tree, path: str, targets: Iterable[str]) -> tuple[str, ...]:
    """Return the targets that a prebuilt file lacks; one without GPU code serves all."""
    present = processors_of(tree, path)
    return tuple(target for target in targets if present and target not in present)


def estimate(table: Rules, system: str, name: str) -> dict[str, object]:
    """Return the published cost as the fields of a unit."""
    cost = table.cost_of(system, name)
    if cost is None:
        return {}
    return {"seconds": cost.seconds, "seconds_from": cost.link}
