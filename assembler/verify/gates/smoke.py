"""Gate ``smoke``: every program that stack.toml lists runs inside the image.

No network, not root, read-only root file system (assembler/verify/smoke.py runs them). A smoke
that fails as its ``expect_failure`` foresees is told as what it does instead, never as a pass.
"""

from __future__ import annotations

from assembler.verify.findings import Finding, GateResult, Severity
from assembler.verify.smoke import SmokeRun, SmokeRuns


def check(runs: SmokeRuns) -> GateResult:
    """Return a finding for every smoke that did not simply pass."""
    findings = [finding for run in runs.runs if (finding := _judge(run)) is not None]
    return GateResult.of(
        "smoke",
        findings,
        examined=len(runs.runs),
        unit="smokes",
        note=f"in {runs.sandbox} as {runs.user}, no network, read-only root",
        facts=runs.model_dump(mode="json"),
    )


def _judge(run: SmokeRun) -> Finding | None:
    if run.outcome == "pass":
        if not run.unexpected_pass:
            return None
        return Finding(
            id="smoke/passes-now",
            severity=Severity.WARNING,
            subject=run.id,
            what=f"{run.summary}: it passes, though stack.toml foresees a failure",
            remedy="remove expect_failure from this smoke",
        )
    last = run.output.strip().rpartition("\n")[2] or "no output"
    where = f"read {run.log}" if run.log else "run it again with --json to see its output"
    if run.outcome == "does-instead":
        return Finding(
            id="smoke/does-instead",
            severity=Severity.NOTE,
            subject=run.id,
            what=f"{run.summary}: does this instead: {run.instead}",
            remedy="nothing here; stack.toml says beside the smoke why it cannot pass yet",
        )
    if run.outcome == "timeout":
        return Finding(
            id="smoke/timeout",
            subject=run.id,
            what=f"{run.summary}: did not end within {run.timeout:g} s; last it said: {last}",
            remedy=f"{where}, or give the smoke a longer timeout in stack.toml",
        )
    return Finding(
        id="smoke/failed",
        subject=run.id,
        what=f"{run.summary}: exit status {run.exit_code}; last it said: {last}",
        remedy=where,
    )
