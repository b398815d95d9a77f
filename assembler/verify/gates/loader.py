"""Gate ``loader``: every library that an ELF file asks for is found, and is new enough.

In an image, or a folder with an environment, the loader's own search is followed
(assembler/verify/loader.py). A single package is judged by what can be told without an image: the
glibc that it asks for, and search paths that lead to other machines' folders.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources

from pydantic import BaseModel, ConfigDict

from assembler.verify.elf import Elf, elf_files
from assembler.verify.findings import Finding, GateResult, Severity
from assembler.verify.loader import Edge, Loader, expand, loader_of, loadings
from assembler.verify.policy import Policy, matches
from assembler.verify.tree import Tree

_GLIBC = re.compile(r"^GLIBC_(\d+)\.(\d+)")


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Dlopen(_Data):
    """A library that some file opens by name at run time."""

    importer: str
    name: str
    severity: Severity
    why: str
    link: str


class Preload(_Data):
    """Libraries that are there because a package imports another one first."""

    importer: str
    provides: str
    why: str
    link: str


class Rules(_Data):
    """What data/loader.toml knows."""

    dlopen: tuple[Dlopen, ...]
    preload: tuple[Preload, ...]


@functools.cache
def rules() -> Rules:
    """Read data/loader.toml."""
    place = resources.files("assembler.verify") / "data" / "loader.toml"
    return Rules.model_validate(tomllib.loads(place.read_text(encoding="utf-8")))


def check(tree: Tree, policy: Policy) -> GateResult:
    """Return what cannot be loaded in this tree."""
    elves = elf_files(tree)
    findings = [*_damaged(elves), *_foreign_paths(tree, elves)]
    if tree.kind == "image" or (tree.kind == "folder" and tree.prefix is not None):
        loader = loader_of(tree)
        roots = loadings(tree)
        edges = {edge: None for edges in roots.values() for edge in edges}
        findings += [*_missing(loader, edges), *_versions(loader, edges)]
        findings += [*_interpreters(tree, elves), *_dlopened(loader)]
        note = f"{len(edges)} needs followed from {len(roots)} files"
        if not loader.cache:
            note += ", no ld.so.cache"
    else:
        findings += _glibc(elves, policy.glibc)
        note = f"against glibc {policy.glibc}" if policy.glibc else "no glibc to compare with"
    return GateResult.of("loader", findings, examined=len(elves), unit="ELF files", note=note)


def _damaged(elves: Mapping[str, Elf]) -> Iterator[Finding]:
    for path, facts in elves.items():
        if facts.trouble is not None:
            yield Finding(
                id="loader/damaged",
                subject=path,
                what=f"starts like an ELF file and cannot be read ({facts.trouble})",
                remedy="fetch or build the package again; the file may be cut short",
            )


def _missing(loader: Loader, edges: dict[Edge, None]) -> Iterator[Finding]:
    for edge in edges:
        if edge.found is None and not _preloaded(loader, edge):
            elsewhere = sorted(
                path
                for path, facts in loader.elves.items()
                if edge.name in (facts.soname, path.rpartition("/")[2])
            )
            hint = f"; it is at {elsewhere[0]}, where nothing looks" if elsewhere else ""
            yield Finding(
                id="loader/not-found",
                subject=edge.importer,
                what=f"needs {edge.name}, which the loader finds nowhere{hint}",
                remedy="add the package that provides it, or allow it with the reason why nobody "
                f"loads this file (--why {edge.importer} shows the search)",
            )


def _preloaded(loader: Loader, edge: Edge) -> bool:
    for rule in rules().preload:
        if matches(edge.importer, (rule.importer,)):
            for path, facts in loader.elves.items():
                if matches(path, (rule.provides,)) and edge.name in (
                    facts.soname,
                    path.rpartition("/")[2],
                ):
                    return True
    return False


def _versions(loader: Loader, edges: dict[Edge, None]) -> Iterator[Finding]:
    told: set[tuple[str, str, str]] = set()
    for edge in edges:
        if edge.found is None:
            continue
        provider = loader.elves[edge.found.path]
        wanted = loader.elves[edge.importer].versions_needed.get(edge.name, ())
        for version in wanted:
            key = (edge.importer, edge.found.path, version)
            # A library without version definitions is accepted by ld.so with a warning.
            if not provider.versions_defined or version in provider.versions_defined or key in told:
                continue
            told.add(key)
            family = version.rpartition("_")[0] + "_"
            newest = max(
                (name for name in provider.versions_defined if name.startswith(family)),
                key=_version_key,
                default="none of that kind",
            )
            yield Finding(
                id="loader/version",
                subject=edge.importer,
                what=f"needs {version} of {edge.name}; {edge.found.path} goes up to {newest}",
                remedy="take a newer base suite, or a build of the package for an older system",
            )


def _version_key(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", name))


def _interpreters(tree: Tree, elves: Mapping[str, Elf]) -> Iterator[Finding]:
    for path, facts in elves.items():
        if facts.interpreter and facts.kind in ("ET_EXEC", "ET_DYN") and not facts.soname:
            where = facts.interpreter.lstrip("/")
            if tree.file_at(where) is None:
                yield Finding(
                    id="loader/interpreter",
                    subject=path,
                    what=f"asks for the program loader {facts.interpreter}, which is not there",
                    remedy="add libc6 to the image's base, or leave the program out",
                )


def _dlopened(loader: Loader) -> Iterator[Finding]:
    for rule in rules().dlopen:
        for path in loader.elves:
            if matches("/" + path, (rule.importer,)) and loader.find(rule.name, path) is None:
                yield Finding(
                    id="loader/dlopen",
                    severity=rule.severity,
                    subject=path,
                    what=f"opens {rule.name} at run time, which the loader finds nowhere: "
                    f"{rule.why} ({rule.link})",
                    remedy="add the package that provides it if the image is to do this",
                )


def _foreign_paths(tree: Tree, elves: Mapping[str, Elf]) -> Iterator[Finding]:
    told: dict[str, list[str]] = {}
    for path, facts in elves.items():
        for text in (*facts.rpath, *facts.runpath):
            folder = expand(text, path)
            literal = text.startswith("/")
            if folder is None or (literal and not tree.exists(folder)):
                told.setdefault(text, []).append(path)
    for text, paths in sorted(told.items()):
        yield Finding(
            id="loader/foreign-path",
            severity=Severity.WARNING,
            subject=text,
            what=f"is a library search path of {paths[0]}"
            + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
            + " and leads to a folder that is not here: whoever makes that folder is loaded from",
            remedy="build without it; upstream's binaries are kept byte for byte, so allow theirs",
        )


def _glibc(elves: Mapping[str, Elf], newest: str | None) -> Iterator[Finding]:
    if newest is None:
        return
    limit = _version_key(newest)
    for path, facts in elves.items():
        above = [
            version
            for versions in facts.versions_needed.values()
            for version in versions
            if (found := _GLIBC.match(version)) and (int(found[1]), int(found[2])) > limit
        ]
        if above:
            yield Finding(
                id="loader/glibc",
                subject=path,
                what=f"needs {max(above, key=_version_key)}, newer than the base's glibc {newest}",
                remedy="take a build for an older system, or a newer base suite",
            )
