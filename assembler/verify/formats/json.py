"""A report as JSON: the model itself (schema: assembler/verify/schemas/report.schema.json)."""

from __future__ import annotations

from assembler.verify.findings import Report


def render(report: Report) -> str:
    """Return the report's JSON, indented."""
    return report.model_dump_json(indent=2)
