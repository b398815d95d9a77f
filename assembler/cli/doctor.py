"""``assembler doctor``: what this machine can do, what is missing, and how to get it."""

from __future__ import annotations

import click

from assembler.cli.options import Session, common
from assembler.doctor import Check, examine
from assembler.errors import MissingToolError

MARKS = {"ok": "ok  ", "missing": "-   ", "limited": "low "}


@click.command("doctor")
@common
def command(session: Session) -> int:
    """Look at this machine and say what the project's commands find here.

    The exit status is 0 unless something is missing that clean-image cannot do without.
    """
    seen = examine(session.workspace, session.profile, session.progress)
    lines = [line for check in seen.checks for line in _lines(check)]
    verdict = "clean-image can work here" if seen.able else "clean-image cannot work here yet"
    session.show(
        seen.model_dump(mode="json"), "\n".join([*lines, "", f"{verdict} ({seen.profile})."])
    )
    return 0 if seen.able else MissingToolError.exit_code


def _lines(check: Check) -> list[str]:
    mark = "MISS" if check.fatal else MARKS[check.status]
    lines = [f"{mark} {check.id}: {check.found}"]
    if check.status != "ok":
        lines.append(f"       for {check.needed_for} → {check.remedy}")
    return lines
