"""A report as plain text for terminals and logs.

One line a gate; findings below it, gathered by id, a few subjects each; allowed ones only counted.
"""

from __future__ import annotations

from assembler.verify.findings import Finding, GateResult, Report, Severity, SubjectReport

SHOWN = 5
MARKS = {"pass": "ok  ", "fail": "FAIL", "skipped": "-   "}
WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def render(report: Report) -> str:
    """Return the report as text."""
    return "\n\n".join(_subject(subject) for subject in report.subjects)


def _subject(subject: SubjectReport) -> str:
    head = f"{subject.path} ({subject.kind})"
    lines = [head, f"  {subject.digest}"] if subject.digest else [head]
    for gate in subject.gates:
        if gate.verdict != "skipped" or len(subject.gates) == 1:
            lines += _gate(gate)
    left_out = [gate.gate for gate in subject.gates if gate.verdict == "skipped"]
    if left_out and len(subject.gates) > 1:
        lines.append(f"  {MARKS['skipped']} not here: {', '.join(left_out)}")
    return "\n".join(lines)


def _gate(gate: GateResult) -> list[str]:
    summary = f"{gate.examined} {gate.unit}" if gate.verdict != "skipped" else ""
    said = "; ".join(part for part in (summary, gate.note) if part)
    took = f" ({gate.seconds:.1f} s)" if gate.seconds >= 0.1 else ""
    lines = [f"  {MARKS[gate.verdict]} {gate.gate}: {said}{took}"]
    told: dict[tuple[str, Severity], list[Finding]] = {}
    allowed: dict[str, int] = {}
    for finding in gate.findings:
        if finding.allowed is not None:
            allowed[finding.allowed] = allowed.get(finding.allowed, 0) + 1
        else:
            told.setdefault((finding.id, finding.severity), []).append(finding)
    for (identity, severity), findings in told.items():
        lines += [
            f"       {WORDS[severity]} {identity} {finding.subject}: {finding.what}"
            for finding in findings[:SHOWN]
        ]
        if len(findings) > SHOWN:
            lines.append(
                f"       … and {len(findings) - SHOWN} more of {identity} (--json has all)"
            )
        remedies = dict.fromkeys(finding.remedy for finding in findings)
        lines += [f"         → {remedy}" for remedy in list(remedies)[:3]]
    lines += [f"       allowed {count}: {reason}" for reason, count in allowed.items()]
    return lines
