"""Gate ``jit``: what will compile at the first request, what that needs, and whether it is there.

One finding for each module that compiles (warning) or would compile and cannot (error). The facts
hold every unit, also the prebuilt ones, with counts for each system.
"""

from __future__ import annotations

from collections import Counter

from assembler.verify.findings import Finding, GateResult, Severity
from assembler.verify.jit import Unit, find_units
from assembler.verify.policy import Policy
from assembler.verify.tree import Tree

WORDS = {
    "prebuilt": "prebuilt",
    "not-asked": "not asked for",
    "compiles": "compile at first request",
    "cannot": "would compile and cannot",
}


def check(tree: Tree, policy: Policy) -> GateResult:
    """Return what will compile at run time in this tree."""
    units = find_units(tree, policy)
    if not units:
        return GateResult.skip("jit", "holds nothing that compiles at run time")
    whole = tree.kind == "image" or (tree.kind == "folder" and tree.prefix is not None)
    counts: dict[str, Counter[str]] = {}
    for unit in units:
        verdict = unit.verdict
        if not whole and verdict == "cannot":
            verdict = "compiles"
        counts.setdefault(unit.system, Counter())[verdict] += 1
    note = "; ".join(
        f"{system}: "
        + ", ".join(f"{count[verdict]} {word}" for verdict, word in WORDS.items() if count[verdict])
        for system, count in counts.items()
    )
    return GateResult.of(
        "jit",
        [_finding(unit, whole=whole) for unit in units if unit.verdict in ("compiles", "cannot")],
        examined=len(units),
        unit="modules",
        note=note,
        facts={
            "counts": {system: dict(count) for system, count in counts.items()},
            "units": [unit.model_dump(mode="json", exclude_defaults=True) for unit in units],
        },
    )


def _finding(unit: Unit, *, whole: bool) -> Finding:
    """Say what compiles; a package alone is only noted, its tools may be in another one."""
    asked = f", asked for by {', '.join(unit.asked_by[:4])}" if unit.asked_by else ""
    when = "when the package is imported" if unit.at_import else "at the first request"
    said = f"compiles {when}{asked}: {unit.why}"
    cost = ""
    if unit.seconds is not None:
        cost = f"; some {unit.seconds:.0f} s by a published figure ({unit.seconds_from})"
    lacks = f"the image lacks {', '.join(unit.missing)}"
    cannot = unit.verdict == "cannot" and whole
    severity = Severity.WARNING if whole else Severity.NOTE
    if cannot:
        severity = Severity.ERROR
        said = f"{said}; that cannot work, since {lacks}"
    return Finding(
        id="jit/cannot" if cannot else "jit/compiles",
        severity=severity,
        subject=f"{unit.system}:{unit.name}",
        what=said + cost,
        remedy="ship it prebuilt for every target, or set what keeps it from being asked for "
        f"({unit.link})",
    )
