"""``assembler build``: recipes and sources in, packages in the channel out."""

from __future__ import annotations

import os
from typing import Any

import click

from assembler.build.builder import Builder, BuildResult, plan
from assembler.build.plan import BuildPlan
from assembler.cli.fetch import report
from assembler.cli.options import Session, common
from assembler.sources.fetch import fetch
from assembler.sources.given import take


def show_plan(session: Session, found: BuildPlan) -> None:
    """Print what a build would do and why."""
    rows = [
        {
            "package": item.path,
            "state": "up to date" if item.up_to_date else "build",
            "why": item.why,
            "key": item.key,
        }
        for item in found.packages
    ]
    lines = [f"{row['state']:10}  {row['package']}  {row['why']}".rstrip() for row in rows]
    lines += [f"remove      {path}" for path in found.stale]
    lines.append(f"{len(found.todo)} of {len(rows)} packages to build")
    data: dict[str, Any] = {
        "packages": rows,
        "stale": list(found.stale),
        "left_out": list(found.left_out),
    }
    session.show(data, "\n".join(lines))


def summary(result: BuildResult) -> str:
    """Return the last line of a build in words."""
    total = len(result.plan.packages)
    if not result.built and not result.removed:
        return f"channel up to date: {total} packages"
    left_out = sum(rule["bytes"] for item in result.built for rule in item.left_out)
    words = f"built {len(result.built)} of {total} packages in {result.seconds:.0f} s"
    if left_out:
        words += f", {left_out / 1e6:.0f} MB left out by rules"
    if result.removed:
        words += f", {len(result.removed)} replaced packages removed"
    return words


@click.command("build")
@click.option("-j", "--jobs", type=click.IntRange(1), help="Packages at a time [CPUs].")
@click.option("--list", "list_only", is_flag=True, help="Show the plan and why; build nothing.")
@click.option("--dry-run", "list_only", is_flag=True, help="The same as --list.")
@click.option("--keep-going", is_flag=True, help="Build what does not need a failed package.")
@click.option("--locked", is_flag=True, help="Refuse to re-pin Debian packages that moved.")
@click.option("--offline", is_flag=True, help="Use the store alone.")
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="NAME=PATH|URL@COMMIT",
    help="A source tree that you give; remembered until NAME= forgets it.",
)
@common
def command(
    session: Session,
    jobs: int | None,
    list_only: bool,
    keep_going: bool,
    locked: bool,
    offline: bool,
    sources: tuple[str, ...],
) -> None:
    """Build every recipe that is not up to date into the channel, after fetching what it needs."""
    given = take(session.workspace, sources)
    fetched = fetch(
        session.workspace,
        session.profile,
        session.progress,
        locked=locked,
        offline=offline,
        given=given,
    )
    report(fetched, session.progress)
    if list_only:
        show_plan(session, plan(session.workspace, session.profile))
        return
    builder = Builder(
        session.workspace, session.profile, session.progress, jobs=jobs or os.cpu_count() or 1
    )
    result = builder.run(keep_going=keep_going)
    session.show(
        result.as_dict() | {"channel": str(session.workspace.channel)},
        f"{summary(result)}\n{session.workspace.channel}",
    )
