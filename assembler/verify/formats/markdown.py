"""A report as Markdown, for job summaries and merge requests."""

from __future__ import annotations

from assembler.verify.findings import Finding, GateResult, Report, SubjectReport

MARKS = {"pass": "✅", "fail": "❌", "skipped": "∅"}
SHOWN = 20


def render(report: Report) -> str:
    """Return a table of gates for each subject, and the findings in folds below it."""
    return "\n\n".join(_subject(subject) for subject in report.subjects)


def _subject(subject: SubjectReport) -> str:
    lines = [f"### `{subject.path}`", ""]
    if subject.digest:
        lines += [f"`{subject.digest}`", ""]
    lines += ["| | gate | examined | findings | |", "|---|---|---|---|---|"]
    for gate in subject.gates:
        failing = sum(finding.fails for finding in gate.findings)
        others = len(gate.findings) - failing
        count = f"{failing} + {others}" if gate.findings else ""
        examined = f"{gate.examined} {gate.unit}" if gate.verdict != "skipped" else ""
        lines.append(
            f"| {MARKS[gate.verdict]} | {gate.gate} | {examined} | {count} | {_cell(gate.note)} |"
        )
    for gate in subject.gates:
        lines += _findings(gate)
    return "\n".join(lines)


def _findings(gate: GateResult) -> list[str]:
    shown = sorted(gate.findings, key=lambda finding: not finding.fails)[:SHOWN]
    if not shown:
        return []
    lines = ["", f"<details><summary>{gate.gate}: {len(gate.findings)} findings</summary>", ""]
    lines += [_line(finding) for finding in shown]
    if len(gate.findings) > SHOWN:
        lines.append(f"- … and {len(gate.findings) - SHOWN} more")
    return [*lines, "", "</details>"]


def _line(finding: Finding) -> str:
    allowed = f" *Allowed: {finding.allowed}*" if finding.allowed else ""
    return (
        f"- **{finding.severity.value}** `{finding.id}` `{finding.subject}`: "
        f"{_cell(finding.what)}. {_cell(finding.remedy)}.{allowed}"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
