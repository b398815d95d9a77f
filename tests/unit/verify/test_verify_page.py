"""The reference page names every gate and every finding that the code can make, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import assembler.verify
from assembler.verify.policy import read_policy
from assembler.verify.session import GATES

PAGE = Path(__file__).parents[3] / "docs/reference/gates.md"
CODE = Path(assembler.verify.__file__).parent
NAMES = "|".join(GATES)


def test_every_finding_has_a_row_and_every_row_a_finding() -> None:
    made = {f"no-compilation/{rule.id}" for rule in read_policy("cpu").denied}
    for path in (*CODE.glob("gates/*.py"), *CODE.glob("*.py")):
        text = path.read_text(encoding="utf-8").replace('f"{NAME}/', '"no-compilation/')
        made |= set(re.findall(rf'"((?:{NAMES})/[a-z][a-z-]+)"', text))
    told = set(
        re.findall(rf"^\| `((?:{NAMES})/[a-z-]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    )
    assert told == made


def test_every_gate_has_a_section_and_its_exit_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for gate in GATES.values():
        assert f"## {gate.name}\n" in text
        assert f"| [{gate.name}](#{gate.name}) | {gate.exit_code} |" in text
