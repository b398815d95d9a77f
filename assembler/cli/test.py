"""``assembler test``: the tests that packages carry, each where only what it declares is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import click

from assembler.build.subjects import subjects
from assembler.build.trials import TrialResult, Trials
from assembler.cli.options import Session, common


def words(result: TrialResult) -> str:
    """Return a line for each package that has tests, and a summary."""
    lines = []
    for trial in result.trials:
        if trial.tests:
            counts = f"{trial.passed} of {trial.tests} passed"
            counts += f", {trial.not_run} not run" if trial.not_run else ""
            why = f"  {'; '.join(trial.words)}" if trial.words else ""
            lines.append(f"{trial.outcome:8}  {trial.path}  {counts}{why}")
    lines += [f"untested  {path}" for path in result.untested]
    passed = sum(trial.passed for trial in result.trials)
    total = sum(trial.tests for trial in result.trials)
    summary = f"{passed} of {total} tests passed in {result.seconds:.0f} s"
    if not_run := sum(trial.not_run for trial in result.trials):
        summary += f", {not_run} not run here"
    if without := len(result.of("none")):
        summary += f"; {without} packages carry none"
    return "\n".join([*lines, summary])


def run_tests(
    session: Session, only: Collection[str], *, jobs: int, keep_going: bool
) -> TrialResult:
    """Run the tests of the named packages, or of all of the profile's."""
    found = subjects(session.workspace, session.profile, only=only)
    trials = Trials(session.workspace, session.profile, session.progress, jobs=jobs)
    return trials.run(found, keep_going=keep_going)


def tell(
    session: Session, result: TrialResult, data: dict[str, Any] | None = None, text: str = ""
) -> int:
    """Print a result, behind what a build has to say; return the exit code.

    A failure is a sentence on stderr and, with ``--json``, ``error`` in the one object on stdout.
    """
    error = result.error
    whole = {**data, "tests": result.as_dict()} if data is not None else result.as_dict()
    if error is not None:
        whole["error"] = error.as_dict()
    session.show(whole, f"{text}\n{words(result)}".lstrip("\n"))
    if error is None:
        return 0
    click.echo(f"assembler: {error}", err=True)
    return error.exit_code


@click.command("test")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--only", multiple=True, metavar="NAME", help="The same as NAME (repeatable).")
@click.option("--keep-going", is_flag=True, help="Test the rest when a package failed.")
@click.option(
    "-j", "--jobs", type=click.IntRange(1), default=1, help="Packages at a time [1]: each takes "
    "the room of its whole environment."
)  # fmt: skip
@common
def command(
    session: Session,
    names: tuple[str, ...],
    only: tuple[str, ...],
    keep_going: bool,
    jobs: int,
) -> int:
    """Run the tests that the channel's packages carry.

    Each test has an environment of its own, with the package and what it declares. NAME may be a
    pattern (`amd-aiter*`) [every package of the profile]. A test that needs what this machine
    lacks, such as a GPU, is told and counts as not run. Exit status 11 when one failed.
    """
    result = run_tests(session, (*names, *only), jobs=jobs, keep_going=keep_going)
    return tell(session, result)
