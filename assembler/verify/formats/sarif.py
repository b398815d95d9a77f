"""A report as SARIF 2.1.0 (OASIS), which code hosting sites show beside the change.

Each finding id is a rule; an allowed finding is a suppressed result with its reason. A subject that
is a path inside the image is the location; the image itself is the run's artifact.
"""

from __future__ import annotations

import json
from urllib.parse import quote

from assembler import __version__
from assembler.verify.findings import Finding, Report, SubjectReport

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(report: Report) -> str:
    """Return one SARIF log with one run for each subject."""
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [_run(subject) for subject in report.subjects],
    }
    return json.dumps(log, indent=2, ensure_ascii=False)


def _run(subject: SubjectReport) -> dict[str, object]:
    findings = [finding for gate in subject.gates for finding in gate.findings]
    identities = sorted({finding.id for finding in findings})
    artifact: dict[str, object] = {"location": {"uri": quote(subject.path)}}
    if subject.digest:
        artifact["hashes"] = {"sha-256": subject.digest.removeprefix("sha256:")}
    return {
        "tool": {
            "driver": {
                "name": "assembler",
                "semanticVersion": __version__,
                "rules": [
                    {"id": identity, "shortDescription": {"text": identity.replace("/", ": ")}}
                    for identity in identities
                ],
            }
        },
        "artifacts": [artifact],
        "results": [_result(finding, identities.index(finding.id)) for finding in findings],
    }


def _result(finding: Finding, rule: int) -> dict[str, object]:
    result: dict[str, object] = {
        "ruleId": finding.id,
        "ruleIndex": rule,
        "level": finding.severity.value,
        "message": {"text": f"{finding.subject} {finding.what}. {finding.remedy}."},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": quote(finding.subject)}},
                "logicalLocations": [{"fullyQualifiedName": finding.subject}],
            }
        ],
        "partialFingerprints": {"finding/v1": f"{finding.id} {finding.subject}"},
    }
    if finding.allowed is not None:
        result["suppressions"] = [{"kind": "external", "justification": finding.allowed}]
    return result
