"""Gate ``size``: images, layers and packages keep to the budgets of the policy.

Budgets are bytes. Layers above what registries take (10 GB at GitHub's) or above the number that
engines mount (docker's classic store: 125) fail without any budget.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from assembler.verify.findings import Finding, GateResult, Severity
from assembler.verify.owners import package_name, sizes_by_package
from assembler.verify.policy import Policy, Size
from assembler.verify.tree import Tree

LARGEST = 15


def check(tree: Tree, policy: Policy) -> GateResult:
    """Return a finding for every budget that is exceeded."""
    sizes = sizes_by_package(tree)
    total = sum(sizes.values())
    facts: dict[str, object] = {
        "unpacked": total,
        "largest": dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:LARGEST]),
    }
    findings = [*_packages(sizes, policy.size)]
    if tree.kind == "image" and tree.config is not None:
        compressed = sum(tree.config.layer_sizes)
        facts |= {"compressed": compressed, "layers": len(tree.config.layer_sizes)}
        findings += _image(tree.label, total, tree.config.layer_sizes, policy.size)
    note = f"{words(total)} unpacked"
    if "compressed" in facts:
        note += f", {words(sum(tree.config.layer_sizes) if tree.config else 0)} compressed"
    return GateResult.of(
        "size", findings, examined=len(sizes), unit="packages", note=note, facts=facts
    )


def _packages(sizes: dict[str, int], budgets: Size) -> Iterator[Finding]:
    for name, size in sorted(sizes.items()):
        budget = next(
            (
                limit
                for pattern, limit in budgets.package_unpacked.items()
                if fnmatch.fnmatchcase(package_name(name), pattern)
            ),
            None,
        )
        if budget is not None and size > budget:
            yield Finding(
                id="size/package",
                subject=name,
                what=f"is {words(size)} unpacked, {words(size - budget)} above its budget of "
                f"{words(budget)}",
                remedy="leave out what an image does not need, or raise the budget in the policy",
            )


def _image(label: str, total: int, layers: tuple[int, ...], budgets: Size) -> Iterator[Finding]:
    for identity, size, budget, word in (
        ("size/image", total, budgets.image_unpacked, "unpacked"),
        ("size/image-compressed", sum(layers), budgets.image_compressed, "compressed"),
    ):
        if budget is not None and size > budget:
            yield Finding(
                id=identity,
                subject=label,
                what=f"is {words(size)} {word}, above its budget of {words(budget)}",
                remedy="leave out what it does not need, or raise the budget in the policy",
            )
    if len(layers) > budgets.layers:
        yield Finding(
            id="size/layers",
            subject=label,
            what=f"has {len(layers)} layers, more than {budgets.layers}",
            remedy="group small packages in one layer: engines mount at most 125",
        )
    for position, size in enumerate(layers):
        if size > budgets.layer_compressed_warning:
            too_big = size > budgets.layer_compressed
            yield Finding(
                id="size/layer",
                severity=Severity.ERROR if too_big else Severity.WARNING,
                subject=f"{label}: layer {position}",
                what=f"is {words(size)} compressed",
                remedy="split the package by folders: registries refuse layers of 10 GB",
            )


def words(size: int) -> str:
    """Return a size as people say it: decimal units, three digits."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError
