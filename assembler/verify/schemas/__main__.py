"""Writes the schema files beside this one."""

from pathlib import Path

from assembler.verify.schemas import write

write(Path(__file__).parent)
