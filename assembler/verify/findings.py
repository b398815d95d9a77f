"""What the gates say: findings, and the report that holds them.

A finding is one fact about one subject, in a form that a person, a CI log and a program can use.
Findings are data: every field is a string or a closed choice, and the JSON schema of a report is
made from the model (docs/reference/verify.schema.json).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT: Final = 1
"""Version of the report's JSON; it changes when a field changes its meaning."""


class Severity(enum.StrEnum):
    """How bad a finding is: an error fails its gate, a warning and a note do not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Finding(_Data):
    """One thing that a gate found.

    ``id`` is ``<gate>/<kind>`` (docs/reference/gates.md describes each), ``subject`` the path,
    package or library that it is about, ``what`` what was seen and wanted, as a clause without a
    final full stop, and ``remedy`` what the reader can do about it, in the same form.
    ``allowed`` is the written reason of a policy exception that covers the finding; such a finding
    is shown and does not fail the gate.
    """

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*/[a-z][a-z0-9-]*$")]
    severity: Severity = Severity.ERROR
    subject: Annotated[str, Field(min_length=1)]
    what: Annotated[str, Field(min_length=1)]
    remedy: Annotated[str, Field(min_length=1)]
    allowed: str | None = None

    @property
    def gate(self) -> str:
        """The gate's name: what stands before the slash."""
        return self.id.partition("/")[0]

    @property
    def fails(self) -> bool:
        """Whether this finding fails its gate."""
        return self.severity is Severity.ERROR and self.allowed is None


Verdict = Literal["pass", "fail", "skipped"]


class GateResult(_Data):
    """What one gate said about one subject.

    ``examined`` counts what was looked at in the gate's own ``unit`` (files, libraries, modules);
    a gate that examined nothing says why in ``note``. ``skipped`` means that the gate does not
    apply or could not run here, and ``note`` says the reason.
    """

    gate: str
    verdict: Verdict
    examined: int = 0
    unit: str = "files"
    seconds: float = 0
    note: str = ""
    findings: tuple[Finding, ...] = ()
    facts: dict[str, object] = {}

    @classmethod
    def of(
        cls,
        gate: str,
        findings: Iterable[Finding],
        *,
        examined: int,
        unit: str = "files",
        note: str = "",
        facts: dict[str, object] | None = None,
    ) -> GateResult:
        """Return the result whose verdict follows from its findings."""
        listed = tuple(findings)
        return cls(
            gate=gate,
            verdict="fail" if any(finding.fails for finding in listed) else "pass",
            examined=examined,
            unit=unit,
            note=note,
            findings=listed,
            facts=facts or {},
        )

    @classmethod
    def skip(cls, gate: str, reason: str) -> GateResult:
        """Return the result of a gate that does not apply or cannot run here."""
        return cls(gate=gate, verdict="skipped", note=reason)


class SubjectReport(_Data):
    """All gates of one path that was verified."""

    path: str
    kind: str = Field(description="oci-layout, oci-archive, conda, wheel, folder, channel")
    digest: str | None = Field(default=None, description="manifest digest or file SHA-256")
    gates: tuple[GateResult, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether any gate failed."""
        return any(gate.verdict == "fail" for gate in self.gates)


class Report(_Data):
    """Everything that one run of ``assembler verify`` found."""

    format: Literal[1] = FORMAT
    profile: str
    subjects: tuple[SubjectReport, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether any gate of any subject failed."""
        return any(subject.failed for subject in self.subjects)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings in the order of subjects and gates."""
        return tuple(
            finding
            for subject in self.subjects
            for gate in subject.gates
            for finding in gate.findings
        )
