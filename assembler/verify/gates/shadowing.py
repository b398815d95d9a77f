"""Gate ``shadowing``: one SONAME, two files, and which importer gets which.

The wrong copy of librccl costs 40 % of decode speed; two copies of libamdhip64 in one process crash
it. Followed by the loader's own search, so the finding says who takes what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from assembler.verify.findings import Finding, GateResult, Severity
from assembler.verify.loader import Edge, loader_of, loadings
from assembler.verify.policy import Policy, matches
from assembler.verify.tree import Tree

SHOWN = 3


def check(tree: Tree, policy: Policy) -> GateResult:
    """Return a finding for each SONAME that more than one file of the tree has."""
    if tree.kind == "folder" and tree.prefix is None:
        return GateResult.skip("shadowing", "the folder holds no environment")
    loader = loader_of(tree)
    provided: dict[str, list[str]] = {}
    for path, facts in sorted(loader.elves.items()):
        if facts.soname and tree.entries[path].hardlink is None:
            provided.setdefault(facts.soname, []).append(path)
    users = _users(loadings(tree))
    findings = [
        finding
        for soname, paths in sorted(provided.items())
        if len(paths) > 1
        for finding in _judge(soname, paths, users.get(soname, {}), policy)
    ]
    return GateResult.of("shadowing", findings, examined=len(provided), unit="SONAMEs")


def _users(roots: Mapping[str, tuple[Edge, ...]]) -> dict[str, dict[str, list[str]]]:
    """Return name -> file that was taken -> importers that took it."""
    users: dict[str, dict[str, list[str]]] = {}
    seen: set[tuple[str, str, str]] = set()
    for edges in roots.values():
        for edge in edges:
            if edge.found is None:
                continue
            key = (edge.name, edge.found.path, edge.importer)
            if key not in seen:
                seen.add(key)
                users.setdefault(edge.name, {}).setdefault(edge.found.path, []).append(
                    edge.importer
                )
    return users


def _judge(
    soname: str, paths: list[str], taken: dict[str, list[str]], policy: Policy
) -> Iterator[Finding]:
    strict = matches(soname, policy.shadowing.strict)
    words = [
        f"{path} ({_who(taken[path])})" if path in taken else f"{path} (nobody)" for path in paths
    ]
    split = sum(path in taken for path in paths) > 1
    usual = Severity.WARNING if split else Severity.NOTE
    yield Finding(
        id="shadowing/split" if split else "shadowing/copies",
        severity=Severity.ERROR if strict else usual,
        subject=soname,
        what=("different importers take different files: " if split else "has more than one file: ")
        + "; ".join(words),
        remedy="let one package provide it and leave the other copy out",
    )


def _who(importers: list[str]) -> str:
    names = sorted({path.rpartition("/")[2] for path in importers})
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return "taken by " + ", ".join(names[:SHOWN]) + more
