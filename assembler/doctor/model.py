"""What the doctor finds: one line for each thing that a command of the project wants."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, computed_field

Status = Literal["ok", "missing", "limited"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Check(_Data):
    """One thing that was looked for.

    ``limited`` means there, and not as it should be. ``needed_for`` says which command wants it;
    ``required`` is set when ``clean-image`` cannot do without. ``remedy`` is empty when ok.
    """

    id: str
    status: Status
    found: str
    needed_for: str
    required: bool = False
    remedy: str = ""

    @property
    def fatal(self) -> bool:
        """Whether ``clean-image`` cannot work because of this."""
        return self.required and self.status == "missing"


class Examination(_Data):
    """All checks of one machine."""

    format: Literal[1] = 1
    profile: str
    checks: tuple[Check, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def able(self) -> bool:
        """Whether ``clean-image`` can work here."""
        return not any(check.fatal for check in self.checks)
