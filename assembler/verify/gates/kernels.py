"""Gate ``kernels``: a GPU package holds GPU code, and not less than its floor.

A wheel without kernels passes every import test (ROCm/aiter#2099). Floors are numbers of code
objects by package name in the policy; a package whose name ends with a gfx target has one of 1.
"""

from __future__ import annotations

import fnmatch
from collections import Counter

from assembler.verify.findings import Finding, GateResult
from assembler.verify.gates.packages import Package, packages_in
from assembler.verify.gfx.listing import list_code
from assembler.verify.gfx.model import CodeObject
from assembler.verify.owners import owners
from assembler.verify.policy import Policy
from assembler.verify.tree import Tree

GATE = "kernels"


def check(tree: Tree, policy: Policy) -> GateResult:
    """Count the code objects of each GPU package and compare them with its floor."""
    packages = packages_in(tree)
    floors = {package.name: floor_of(package, policy) for package in packages}
    gpu = [package for package in packages if floors[package.name]]
    if not gpu:
        return GateResult.of(
            GATE, (), examined=0, unit="GPU packages", note="no package here must hold GPU code"
        )
    counts = _count(tree)
    findings = [
        finding
        for package in gpu
        if (finding := _judge(package.name, counts[package.name], floors[package.name]))
    ]
    return GateResult.of(
        GATE,
        findings,
        examined=len(gpu),
        unit="GPU packages",
        facts={"code_objects": {package.name: counts[package.name] for package in gpu}},
    )


def floor_of(package: Package, policy: Policy) -> int:
    """Return the smallest number of code objects that a package must hold; 0 for host packages."""
    for pattern, floor in policy.kernels.floors.items():
        if fnmatch.fnmatchcase(package.name, pattern):
            return floor
    return 1 if package.target and package.name.rpartition("-device-")[1] else 0


def _count(tree: Tree) -> Counter[str]:
    """Return the number of code objects by package name."""
    objects = [item for item in list_code(tree) if isinstance(item, CodeObject)]
    if tree.kind in ("conda", "wheel"):
        return Counter({packages_in(tree)[0].name: len(objects)})
    claims = owners(tree)
    return Counter(
        owner.removeprefix("conda:")
        for one in objects
        for owner in claims.get(one.path.partition("!/")[0], ())
    )


def _judge(name: str, count: int, floor: int) -> Finding | None:
    if count >= floor:
        return None
    if count == 0:
        return Finding(
            id="kernels/none",
            subject=name,
            what="is a GPU package and holds no code object at all",
            remedy="look at its build log: kernels were skipped or left out by a rule",
        )
    return Finding(
        id="kernels/below-floor",
        subject=name,
        what=f"holds {count} code objects, its floor is {floor}",
        remedy="look at its build log for kernels that were skipped, or correct the floor",
    )
