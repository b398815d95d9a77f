"""JSON schemas of policies and reports, made from their models.

``python -m assembler.verify.schemas`` writes them anew beside this file; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from assembler.verify.findings import Report
from assembler.verify.policy import Policy

SCHEMAS: Mapping[str, tuple[type[BaseModel], Literal["validation", "serialization"]]] = {
    "policy.schema.json": (Policy, "validation"),
    "report.schema.json": (Report, "serialization"),
}


def render(model: type[BaseModel], mode: Literal["validation", "serialization"]) -> str:
    """Return the text of a model's schema file: of what it reads, or of what it prints."""
    schema = model.model_json_schema(mode=mode)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def write(folder: Path) -> None:
    """Write all schema files into a folder."""
    for name, (model, mode) in SCHEMAS.items():
        (folder / name).write_text(render(model, mode), encoding="utf-8")
