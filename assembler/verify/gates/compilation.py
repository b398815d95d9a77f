"""Gate ``no-compilation``: nothing in the image can compile, and nothing tried to.

Two halves. The deny list of the policy is held against every path of the tree. The process list of
the smoke run is held against the same names: a denied program that ran is an error, and so is one
that was looked for and not found, since that is a just-in-time build that would have happened.
Limit: machine code made inside a process (LLVM in libtriton) starts no program and is not seen;
the gate ``jit`` names what does that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from assembler.verify.elf import is_elf
from assembler.verify.findings import Finding, GateResult, Severity
from assembler.verify.policy import Denied, Policy, matches
from assembler.verify.smoke import SmokeRuns
from assembler.verify.tree import Entry, Tree

NAME = "no-compilation"
REMEDY = "ship what it would compile prebuilt, or switch that path off in the image's Env"


def check(tree: Tree, policy: Policy, runs: SmokeRuns | None = None) -> GateResult:
    """Return what the tree holds and what the runs started that could compile."""
    findings = [*find_files(tree, policy.denied)]
    if tree.kind != "image":
        # Packages may hold what an image leaves out; whether it does, the image's own check says.
        findings = [one.model_copy(update={"severity": Severity.WARNING}) for one in findings]
    note = "no processes watched"
    facts: dict[str, object] = {}
    if runs is not None and runs.untraced is not None:
        note = f"no processes watched: {runs.untraced}"
    elif runs is not None:
        findings += find_processes(runs, policy.denied)
        started = [item for run in runs.runs for item in run.execs or ()]
        facts["programs"] = sorted({item.path for item in started if item.error is None})
        note = f"{len(started)} programs watched in {len(runs.runs)} smokes"
    elif tree.kind == "image":
        note = "no processes watched (the gate smoke was not asked for)"
    return GateResult.of(
        NAME, findings, examined=len(tree.entries), unit="paths", note=note, facts=facts
    )


def find_files(tree: Tree, denied: Sequence[Denied]) -> Iterator[Finding]:
    """Yield a finding for every path that the deny list covers, in path order."""
    for path in sorted(tree.entries):
        entry = tree.entries[path]
        for rule in denied:
            if _covers(rule, tree, entry):
                yield Finding(
                    id=f"{NAME}/{rule.id}",
                    severity=rule.severity,
                    subject=path,
                    what=f"is {rule.what}",
                    remedy=rule.remedy,
                )
                break


def _covers(rule: Denied, tree: Tree, entry: Entry) -> bool:
    if not (matches(entry.name, rule.names) or (rule.paths and matches(entry.path, rule.paths))):
        return False
    if matches(entry.path, rule.except_paths):
        return False
    if rule.folders:
        return entry.kind == "directory"
    if entry.kind == "directory":
        return False
    real = tree.file_at(entry.path) if entry.kind == "symlink" else entry
    if rule.executable and (real is None or not real.executable):
        return False
    return not rule.elf or (real is not None and is_elf(tree, real))


def find_processes(runs: SmokeRuns, denied: Sequence[Denied]) -> Iterator[Finding]:
    """Yield a finding for every smoke and denied program that it started or looked for."""
    programs = [rule for rule in denied if rule.executable]
    for run in runs.runs:
        seen: set[str] = set()
        for item in run.execs or ():
            name = item.path.rpartition("/")[2]
            rule = next((rule for rule in programs if matches(name, rule.names)), None)
            if rule is None or name in seen:
                continue
            seen.add(name)
            words = " ".join(item.argv[:6]) or name
            if item.error is None:
                yield Finding(
                    id=f"{NAME}/started",
                    subject=f"{run.id}: {item.path}",
                    what=f"the smoke {run.id} started {rule.what} ({words})",
                    remedy=REMEDY,
                )
            else:
                yield Finding(
                    id=f"{NAME}/looked-for",
                    subject=f"{run.id}: {name}",
                    what=f"the smoke {run.id} tried to start {rule.what} ({words}: {item.error})",
                    remedy=REMEDY,
                )
