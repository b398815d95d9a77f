"""Gate ``gfx``: the GPU code is for the declared targets, and says so everywhere alike.

Targets are declared by a device package's name (``amd-aiter-device-gfx942``), in an environment by
the installed build of ``atom-device``, and else by the policy (recipes/variants.yaml). Code for a
generic processor counts for every processor that it covers. Target ID rules: LLVM's "User Guide for
AMDGPU Backend", "Target ID".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from assembler.targets import spelled_targets
from assembler.verify.findings import Finding, GateResult, Severity
from assembler.verify.gates.packages import declared_targets
from assembler.verify.gfx.bundle import Entry
from assembler.verify.gfx.flags import processors, runs_on
from assembler.verify.gfx.listing import list_code
from assembler.verify.gfx.model import CodeObject, Form, Kind, Trouble, summarise
from assembler.verify.policy import Policy
from assembler.verify.tree import Tree

GATE = "gfx"
NAMED = re.compile(r"gfx\d+(?:-\d+)?-generic|gfx[0-9]+[0-9a-f]*(?![0-9A-Za-z])")
# What the members of a family share: gfx11xx, gfx120x.
FAMILY = re.compile(r"gfx[0-9a-f]+x+(?![0-9A-Za-z])")
FAT = (Kind.BUNDLE, Kind.COMPRESSED_BUNDLE, Kind.EMBEDDED)
ANY_PROCESSOR = "amdgcnspirv"


def check(tree: Tree, policy: Policy) -> GateResult:
    """Compare every code object with the declared targets, its place's name and its bundle's ID."""
    items = list_code(tree)
    targets, whence = declared_targets(tree, policy)
    findings = [*judge(items, targets)]
    objects = [item for item in items if isinstance(item, CodeObject)]
    if objects and targets:
        findings += _absent(tree, objects, targets, whence)
    return GateResult.of(
        GATE,
        findings,
        examined=len(objects),
        unit="code objects",
        note="" if objects else "no GPU code here",
        facts={
            "declared": list(targets),
            "declared_by": whence,
            "targets": [
                {name: getattr(one, name) for name in one.__slots__} for one in summarise(objects)
            ],
        },
    )


def judge(items: Iterable[CodeObject | Trouble], targets: Sequence[str]) -> Iterator[Finding]:
    """Yield the findings about each file's code; no targets are declared when ``targets`` is empty.

    Needs the items file by file, as the reader gives them.
    """
    for path, group in groupby(items, key=lambda item: item.path):
        objects: list[CodeObject] = []
        for item in group:
            if isinstance(item, CodeObject):
                objects.append(item)
            else:
                yield _unreadable(item)
        yield from _mislabelled(path, objects)
        if objects and targets:
            yield from _targets_of(path, objects, targets)


def _unreadable(trouble: Trouble) -> Finding:
    where = f" of {trouble.section}" if trouble.section else ""
    return Finding(
        id="gfx/unreadable",
        subject=trouble.path,
        what=f"cannot be read at offset {trouble.offset}{where}: {trouble.reason}",
        remedy="fetch or build the file again; it was cut short or altered",
    )


def _mislabelled(path: str, objects: Sequence[CodeObject]) -> Iterator[Finding]:
    """Compare e_flags with the bundle's entry IDs, and with the innermost name that has a gfx."""
    for one in objects:
        if one.bundle_id is None or one.form is not Form.ELF:
            continue
        said = Entry(one.bundle_id, 0, 0).processor
        features = one.bundle_id.partition(f"{said}")[2] if said else ""
        # Up to V3 a feature that nobody asked for is off in the header and unsaid in the ID.
        has = one.target if _says_any(one) else one.processor + features
        if said is not None and said + features != has:
            yield Finding(
                id="gfx/id-mismatch",
                subject=path,
                what=f"the bundle calls the code at offset {one.offset} {said}{features}, "
                f"its ELF header says {one.target}",
                remedy="build the bundle again: the runtime picks code by the bundle's ID",
            )
    wrong = sorted({one.processor for one in objects if not _fits_name(path, one)})
    if wrong:
        name = ", ".join(_names_in(path))
        yield Finding(
            id="gfx/name-mismatch",
            subject=path,
            what=f"named for {name} and holds code for {', '.join(wrong)}",
            remedy="put the file where its code belongs: libraries look it up by the GPU's name",
        )


def _says_any(one: CodeObject) -> bool:
    """Whether the code object's version can say that a feature may be on or off (V4 and after)."""
    return one.code_object_version is None or one.code_object_version >= 4


def _names_in(path: str) -> tuple[str, ...]:
    """Return the processors that the last component with any of them names."""
    known = {row.name for row in processors().values()}
    for part in reversed(path.split("/")):
        names = tuple(
            name
            for name in NAMED.findall(part)
            if any(name == one or _with_units(name, one) for one in known)
        )
        if names:
            return names
    return ()


def _with_units(name: str, processor: str) -> bool:
    """Whether a name is a processor's with its number of compute units (MIOpen: gfx90a68.kdb)."""
    return name.startswith(processor) and name[len(processor) :].isdigit()


def _fits_name(path: str, one: CodeObject) -> bool:
    names = _names_in(path)
    covered = runs_on(one.processor)
    return (
        not names
        or one.processor == ANY_PROCESSOR
        or any(name in covered or _with_units(name, one.processor) for name in names)
    )


def _targets_of(
    path: str, objects: Sequence[CodeObject], targets: Sequence[str]
) -> Iterator[Finding]:
    processors_here = sorted({one.processor for one in objects})
    covered = {target for one in objects for target in _covered(one, targets)}
    if not covered and not _shared(path, targets):
        yield Finding(
            id="gfx/foreign-target",
            subject=path,
            what=f"holds code for {', '.join(processors_here)} alone, declared are "
            f"{', '.join(targets)}",
            remedy="leave the file out by a rule of the recipe, or build it for the targets",
        )
        return
    fat = any(one.kind in FAT for one in objects) and not _names_in(path)
    if fat and (missing := [target for target in targets if target not in covered]):
        yield Finding(
            id="gfx/missing-target",
            subject=path,
            what=f"holds code for {', '.join(processors_here)}, none for {', '.join(missing)}",
            remedy=f"build it for {', '.join(targets)}: the runtime takes no other code",
        )
    extra = [one for one in objects if not _covered(one, targets)]
    if extra:
        size = sum(one.size for one in extra)
        yield Finding(
            id="gfx/extra-target",
            severity=Severity.NOTE,
            subject=path,
            what=f"holds code for {', '.join(sorted({one.processor for one in extra}))} beside "
            f"the declared targets ({size} bytes unpacked)",
            remedy="build it for the declared targets alone to save that room",
        )
    yield from _bound(path, objects, targets)


def _shared(path: str, targets: Sequence[str]) -> bool:
    """Whether a file is named after a family that a declared target is of."""
    names = FAMILY.findall(path)
    return any(target in spelled_targets(name) for name in names for target in targets)


def _covered(one: CodeObject, targets: Sequence[str]) -> set[str]:
    if one.processor == ANY_PROCESSOR:
        return set(targets)
    return set(targets) & runs_on(one.processor)


def _bound(path: str, objects: Sequence[CodeObject], targets: Sequence[str]) -> Iterator[Finding]:
    """Warn of a target whose only code wants XNACK or SRAM-ECC in a fixed state."""
    for target in targets:
        here = [one for one in objects if target in _covered(one, targets)]
        bound = sorted({one.target for one in here})
        if here and all(":" in one.target and _says_any(one) for one in here):
            yield Finding(
                id="gfx/feature-bound",
                severity=Severity.WARNING,
                subject=path,
                what=f"its code for {target} is for {', '.join(bound)} alone",
                remedy=f"build it for plain {target}, or make sure that every machine is set so",
            )


def _absent(
    tree: Tree, objects: Sequence[CodeObject], targets: Sequence[str], whence: str
) -> Iterator[Finding]:
    covered = {target for one in objects for target in _covered(one, targets)}
    for target in targets:
        if target not in covered:
            yield Finding(
                id="gfx/absent-target",
                subject=tree.label,
                what=f"{target} is declared by {whence}, and no code object is for it",
                remedy=f"add the device packages for {target}, or take it from the targets",
            )
