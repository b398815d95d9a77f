"""What this machine can do for the project, what is missing, and how to get it."""

from assembler.doctor.model import Check, Examination
from assembler.doctor.survey import examine

__all__ = ["Check", "Examination", "examine"]
