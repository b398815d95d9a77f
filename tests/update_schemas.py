"""Write the JSON schemas in docs/reference anew from the models: python -m tests.update_schemas."""

from __future__ import annotations

import json

from assembler.stack import Stack
from tests.conftest import ROOT

if __name__ == "__main__":
    file = ROOT / "docs" / "reference" / "stack.schema.json"
    file.write_text(json.dumps(Stack.model_json_schema(), indent=2, sort_keys=True) + "\n")
