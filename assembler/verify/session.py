"""Runs gates over subjects: which gate looks at what, in which order, and what came of it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from assembler.channel.guard import exclusive
from assembler.errors import ConfigError, VerifyError
from assembler.progress import Progress
from assembler.stack import Profile, Smoke
from assembler.verify import smoke
from assembler.verify.findings import GateResult, Report, SubjectReport
from assembler.verify.loader import explain
from assembler.verify.opening import Subject, find_subjects, open_tree
from assembler.verify.policy import Policy, read_policy, read_targets
from assembler.verify.tree import Tree, TreeKind
from assembler.workspace import Workspace

ALL: tuple[TreeKind, ...] = ("image", "conda", "wheel", "folder")
WHOLE: tuple[TreeKind, ...] = ("image", "folder")
Needs = Literal["tree", "runs", "tree and runs"]


@dataclass(frozen=True)
class Gate:
    """One gate.

    ``module`` is the file in assembler/verify/gates whose function ``check`` gives the result. It
    takes the tree and the policy; one that ``needs`` runs takes the smoke runs (None when they
    were not asked for) instead of both or after them. ``exit_code`` is what the command ends with
    when no other gate fails.
    """

    name: str
    summary: str
    module: str
    kinds: tuple[TreeKind, ...]
    exit_code: int
    needs: Needs = "tree"

    def run(self, tree: Tree, policy: Policy, runs: smoke.SmokeRuns | None) -> GateResult:
        """Load the gate's module and ask it."""
        module = importlib.import_module(f"assembler.verify.gates.{self.module}")
        arguments: tuple[object, ...] = {
            "tree": (tree, policy), "runs": (runs,), "tree and runs": (tree, policy, runs)
        }[self.needs]  # fmt: skip
        result: GateResult = module.check(*arguments)
        return result


SMOKE = "smoke"
SHORTEST_PATH = 5
"""Paths no longer than this (``/``, ``/home``) say nothing of a machine."""
GATES: dict[str, Gate] = {
    gate.name: gate
    for gate in (  # in the order in which they run
        Gate(SMOKE, "declared programs run inside the image", "smoke", ("image",), 20, "runs"),
        Gate("gfx", "GPU code is for the declared targets", "gfx", ALL, 21),
        Gate("kernels", "GPU packages hold GPU code, and enough of it", "kernels", ALL, 22),
        Gate("loader", "every library asked for is found, and new enough", "loader", ALL, 23),
        Gate("shadowing", "one SONAME comes from one file", "shadowing", WHOLE, 24),
        Gate(
            "no-compilation",
            "nothing can compile, and nothing tried to",
            "compilation",
            ALL,
            25,
            "tree and runs",
        ),
        Gate("jit", "what compiles at the first request", "jit", ALL, 26),
        Gate("hygiene", "modes, links, names, caches and host paths", "hygiene", ALL, 27),
        Gate("size", "images, layers and packages keep to their budgets", "size", ALL, 28),
    )
}


@dataclass(frozen=True)
class Request:
    """What to verify and how."""

    paths: tuple[Path, ...]
    profile: str
    policy: Policy
    scratch: Path
    gates: tuple[str, ...] = ()
    smokes: Sequence[Smoke] = ()
    sandbox: str | None = None

    def selected(self) -> tuple[Gate, ...]:
        """Return the gates asked for, all when none is named; ConfigError for an unknown one."""
        unknown = [name for name in self.gates if name not in GATES]
        if unknown:
            raise ConfigError(
                f"there is no gate {unknown[0]!r}", remedy=f"the gates are {', '.join(GATES)}"
            )
        return tuple(gate for gate in GATES.values() if not self.gates or gate.name in self.gates)


def home_folder() -> tuple[Path, ...]:
    """Return the user's home, or nothing for one without HOME and without an account."""
    try:
        return (Path.home(),)
    except RuntimeError:
        return ()


def request_for(
    workspace: Workspace,
    profile: Profile,
    *,
    paths: Sequence[Path] = (),
    gates: Sequence[str] = (),
    sandbox: str | None = None,
    extra: Path | None = None,
    scratch: Path | None = None,
) -> Request:
    """Return what to verify for a profile: by default its image, by its own policy.

    ``extra`` is a policy file of the user's, ``scratch`` the folder for unpacked copies. The
    policy is told what only the project knows: gfx targets, the base's glibc, and the paths of
    this machine that must not show in files.
    """
    folders = (workspace.root, *home_folder())
    own = (f"{path}/" for path in folders if len(str(path)) > SHORTEST_PATH)
    policy = read_policy(
        profile.name,
        extra=extra,
        targets=read_targets(workspace.root, profile.variants),
        glibc=profile.image.base.glibc,
        host_paths=tuple(own),
    )
    return Request(
        paths=tuple(paths) or (workspace.image_layout(profile),),
        profile=profile.name,
        policy=policy,
        scratch=(scratch or workspace.build / "verify").absolute(),
        gates=tuple(gates),
        smokes=profile.smoke,
        sandbox=sandbox,
    )


def verify(request: Request, progress: Progress) -> Report:
    """Open every path and run the gates; errors of one path end the run.

    The scratch folder is held meanwhile: two runs would unpack and run one image in one place.
    """
    gates = request.selected()
    with exclusive(request.scratch, progress):
        reports = [
            _verify_subject(subject, request, gates, progress)
            for path in request.paths
            for subject in find_subjects(path)
        ]
    return Report(profile=request.profile, subjects=tuple(reports))


def _verify_subject(
    subject: Subject, request: Request, gates: Sequence[Gate], progress: Progress
) -> SubjectReport:
    with (
        open_tree(subject, request.scratch, progress) as tree,
        progress.task(f"verify {subject.path.name}", total=len(gates)) as task,
    ):
        runs: smoke.SmokeRuns | None = None
        results: list[GateResult] = []
        for gate in gates:
            task.describe(f"verify {subject.path.name}: {gate.name}")
            if tree.kind in gate.kinds:
                started = time.monotonic()
                if gate.name == SMOKE:
                    runs = run_smokes(tree, request, progress)
                result = gate.run(tree, request.policy, runs)
                results.append(_judged(result, request.policy, time.monotonic() - started))
            else:
                results.append(GateResult.skip(gate.name, f"does not apply to a {subject.kind}"))
            task.advance()
        return SubjectReport(
            path=str(subject.path), kind=subject.kind, digest=tree.digest, gates=tuple(results)
        )


def run_smokes(tree: Tree, request: Request, progress: Progress) -> smoke.SmokeRuns:
    """Run the profile's smokes with their outputs kept beside the unpacked copy."""
    logs = request.scratch / "logs" / (tree.digest or "folder").removeprefix("sha256:")[:16]
    return smoke.run(tree, request.smokes, progress, sandbox=request.sandbox, logs=logs)


def _judged(result: GateResult, policy: Policy, seconds: float) -> GateResult:
    """Return the result with the policy's exceptions applied and the time it took."""
    findings = tuple(map(policy.excuse, result.findings))
    verdict = result.verdict
    if verdict != "skipped":
        verdict = "fail" if any(finding.fails for finding in findings) else "pass"
    return result.model_copy(
        update={"findings": findings, "verdict": verdict, "seconds": round(seconds, 3)}
    )


def explain_file(request: Request, file: str, progress: Progress) -> str:
    """Return how the loader finds the libraries of one file of the first subject that is given."""
    subject = find_subjects(request.paths[0])[0]
    with open_tree(subject, request.scratch, progress) as tree:
        return explain(tree, file)


def exit_code(report: Report) -> int:
    """Return 0, the code of the one gate that failed, or VerifyError's when several did."""
    failed = {
        result.gate
        for subject in report.subjects
        for result in subject.gates
        if result.verdict == "fail"
    }
    if len(failed) == 1:
        return GATES[failed.pop()].exit_code
    return VerifyError.exit_code if failed else 0
