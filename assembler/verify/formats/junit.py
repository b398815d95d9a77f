"""A report as JUnit XML, which every CI system can show: a suite a subject, a case a gate.

Form: Jenkins' junit-10.xsd (testsuites, testsuite, testcase, failure, skipped, system-out); there
is no official schema.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from assembler.verify.findings import GateResult, Report, SubjectReport

_FORBIDDEN = re.compile(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no character for."""


def render(report: Report) -> str:
    """Return the XML document."""
    top = ET.Element("testsuites", name="assembler verify")
    for subject in report.subjects:
        top.append(_suite(subject))
    ET.indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(top, encoding="unicode")


def _suite(subject: SubjectReport) -> ET.Element:
    suite = ET.Element(
        "testsuite",
        name=_plain(subject.path),
        tests=str(len(subject.gates)),
        failures=str(sum(gate.verdict == "fail" for gate in subject.gates)),
        skipped=str(sum(gate.verdict == "skipped" for gate in subject.gates)),
        errors="0",
        time=f"{sum(gate.seconds for gate in subject.gates):.3f}",
    )
    for gate in subject.gates:
        suite.append(_case(subject, gate))
    return suite


def _case(subject: SubjectReport, gate: GateResult) -> ET.Element:
    case = ET.Element(
        "testcase", name=gate.gate, classname=_plain(subject.path), time=f"{gate.seconds:.3f}"
    )
    if gate.verdict == "skipped":
        ET.SubElement(case, "skipped", message=_plain(gate.note))
        return case
    failing = [finding for finding in gate.findings if finding.fails]
    if failing:
        failure = ET.SubElement(
            case,
            "failure",
            type=failing[0].id,
            message=_plain(f"{len(failing)} findings, first: {failing[0].subject}"),
        )
        failure.text = _plain(
            "\n".join(f"{one.id} {one.subject}: {one.what}; {one.remedy}." for one in failing)
        )
    others = [finding for finding in gate.findings if not finding.fails]
    if others or gate.note:
        lines = [gate.note] if gate.note else []
        lines += [
            f"{one.severity.value} {one.id} {one.subject}: {one.what}"
            + (f" (allowed: {one.allowed})" if one.allowed else "")
            for one in others
        ]
        ET.SubElement(case, "system-out").text = _plain("\n".join(lines))
    return case


def _plain(text: str) -> str:
    return _FORBIDDEN.sub("�", text)
