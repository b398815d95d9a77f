"""``assembler build``: recipes and sources in, packages in the channel out."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import click

from assembler.build.builder import Builder, plan
from assembler.build.needs import GB, Machine
from assembler.build.plan import BuildPlan
from assembler.build.result import BuildResult
from assembler.cli.fetch import report
from assembler.cli.options import Session, common, fetching
from assembler.cli.test import run_tests, tell
from assembler.errors import BuildError
from assembler.sources.fetch import fetch
from assembler.sources.given import take


def show_plan(session: Session, found: BuildPlan) -> None:
    """Print what a build would do and why."""
    rows = [
        {
            "package": item.path,
            "state": "up to date" if item.up_to_date else "lacking" if item.lacks else "build",
            "why": item.why,
            "lacks": item.lacks if item.why else "",
            "key": item.key,
        }
        for item in found.packages
    ]
    lines = []
    for row in rows:
        words = "; ".join(part for part in (row["why"], row["lacks"]) if part)
        lines.append(f"{row['state']:10}  {row['package']}  {words}".rstrip())
    lines += [f"remove      {path}" for path in found.stale]
    lines.append(f"{len(found.todo)} of {len(rows)} packages to build")
    if count := len(found.unfetched):
        words = "1 wheel is" if count == 1 else f"{count} wheels are"
        lines.append(f"{words} not fetched yet: run `assembler fetch`")
    data: dict[str, Any] = {
        "packages": rows,
        "stale": list(found.stale),
        "left_out": list(found.left_out),
        "unfetched": list(found.unfetched),
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
    if unasked := result.unasked:
        words += f", {sum(unasked.values()) / 1e6:.0f} MB for {', '.join(unasked)} in no package"
    if result.removed:
        words += f", {len(result.removed)} replaced packages removed"
    return words


def wanted_recipes(
    session: Session, only: tuple[str, ...], up_to: tuple[str, ...]
) -> set[str] | None:
    """Return the recipes whose sources the named packages need; None for all of them.

    What wheels need is only known once they are here, so that a profile with a wheel list fetches
    all of it for --up-to. Raises ConfigError for a name that is none.
    """
    if not (only or up_to):
        return None
    try:
        found = plan(session.workspace, session.profile, only=only, up_to=up_to)
    except BuildError:
        return None  # said again, and rightly, when everything is here
    if up_to and session.profile.wheels is not None:
        return None
    wheels = {name for name in found.unfetched if any(fnmatchcase(name, one) for one in only)}
    return wheels | {item.rendered.recipe.name for item in found.packages}


@click.command("build")
@click.option("-j", "--jobs", type=click.IntRange(1), help="Packages at a time [CPUs].")
@click.option("--list", "list_only", is_flag=True, help="Show the plan and why; build nothing.")
@click.option("--dry-run", "list_only", is_flag=True, help="The same as --list.")
@click.option("--keep-going", is_flag=True, help="Build what does not need a failed package.")
@click.option(
    "--only", multiple=True, metavar="NAME", help="Only this package or recipe (repeatable)."
)
@click.option(
    "--up-to",
    multiple=True,
    metavar="NAME",
    help="Only this package and what it needs (repeatable).",
)
@click.option("--test", "test", is_flag=True, help="Run the tests of what was built, at the end.")
@click.option("--cpus", type=click.IntRange(1), help="CPUs that builds may use [all].")
@click.option(
    "--memory",
    type=click.FloatRange(0, min_open=True),
    metavar="GB",
    help="Memory that builds may use [what is free].",
)
@fetching
@common
def command(
    session: Session,
    jobs: int | None,
    list_only: bool,
    keep_going: bool,
    only: tuple[str, ...],
    up_to: tuple[str, ...],
    test: bool,
    cpus: int | None,
    memory: float | None,
    locked: bool,
    offline: bool,
    sources: tuple[str, ...],
) -> int:
    """Build every recipe that is not up to date into the channel, after fetching what it needs.

    NAME may be a pattern (`amd-aiter*`). A package that needs what this machine lacks fails before
    it starts; with --keep-going the rest is built. --list fetches nothing. --test runs the tests
    that the new packages carry, as `assembler test` does.
    """
    if list_only:
        show_plan(session, plan(session.workspace, session.profile, only=only, up_to=up_to))
        return 0
    given = take(session.workspace, sources)
    fetched = fetch(
        session.workspace,
        session.profile,
        session.progress,
        locked=locked,
        offline=offline,
        given=given,
        only=wanted_recipes(session, only, up_to),
    )
    report(fetched, session.progress)
    machine = Machine.here(cpus=cpus, memory=int(memory * GB) if memory else None)
    builder = Builder(
        session.workspace,
        session.profile,
        session.progress,
        jobs=jobs or machine.cpus,
        machine=machine,
    )
    result = builder.run(keep_going=keep_going, only=only, up_to=up_to)
    data = result.as_dict() | {"channel": str(session.workspace.channel)}
    text = f"{summary(result)}\n{session.workspace.channel}"
    if test and result.built:
        # At the very end: what packages need at run time may have been built after them.
        paths = [item.path for item in result.built]
        return tell(session, run_tests(session, paths, jobs=1, keep_going=keep_going), data, text)
    session.show(data, text)
    return 0
