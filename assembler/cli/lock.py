"""``assembler lock``: solve and write the lock; check it; compare two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from assembler.cli.options import Session, common
from assembler.cli.output import emit
from assembler.cli.paths import LOCK
from assembler.errors import ConfigError
from assembler.lock.check import Check, Verdict, check_lock
from assembler.lock.diff import compare, markdown, table
from assembler.lock.files import read_lock


class Lock(click.Group):
    """``assembler lock`` locks; ``assembler lock diff`` is a command of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take what is no sub-command for the options of ``solve``."""
        if not args or args[0] not in self.commands:
            args = ["solve", *args]
        return super().parse_args(ctx, args)


@click.group(cls=Lock)
def command() -> None:
    """Solve the stack against the channel and write the lock."""


def _names(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for value in values for name in value.replace(",", " ").split())


@command.command()
@common
@click.option(
    "--update",
    multiple=True,
    metavar="NAME",
    help="Move only this package (repeatable, or a list with commas); all others stay.",
)
@click.option("--update-base", is_flag=True, help="Take the newest of every base package.")
@click.option(
    "--gfx",
    multiple=True,
    metavar="TARGET",
    help="Device packages of this target only; `all` for every one [as locked, else all].",
)
@click.option("--check", is_flag=True, help="Only tell whether the lock is fresh; no network.")
@click.option("--markdown", "as_markdown", is_flag=True, help="What changed as Markdown.")
def solve(
    session: Session,
    update: tuple[str, ...],
    update_base: bool,
    gfx: tuple[str, ...],
    check: bool,
    as_markdown: bool,
) -> int:
    """Solve the stack against the channel and write the lock (the default).

    \b
    assembler lock                      solve and write locks/<profile>/
    assembler lock --update pytorch     move only pytorch
    assembler lock --check              is the lock fresh?
    assembler lock diff OLD NEW         what changed between two locks

    \b
    Exit codes of --check: 0 fresh, 40 what is asked for has changed, 41 the channel lacks or
    differs from a locked package, 42 a base package can no longer be had, 43 the lock is of a
    newer format, 44 a rendering does not say what the lock says, 9 there is no valid lock.
    """  # noqa: D301 - click wants the character itself
    if check:
        return _check(session)
    from assembler.lock.make import update_lock

    names = _names(update)
    made = update_lock(
        session.workspace,
        session.profile,
        session.progress,
        gfx=_names(gfx) or None,
        update=names if names else () if update_base else None,
        update_base=update_base,
    )
    lock, folder = made.lock, session.workspace.lock_folder(session.profile)
    shown = markdown(made.difference) if as_markdown else table(made.difference)
    assumed = ", ".join(f"{name} {value}" for name, value in lock.virtual_packages.items())
    text = "\n".join(
        (
            shown,
            f"{folder}: {len(lock.packages)} packages for {', '.join(lock.specs)}"
            + (f", GPU targets {', '.join(lock.gfx_targets)}" if lock.gfx_targets else ""),
            f"assumed of every machine: {assumed}",
        )
    )
    data: dict[str, Any] = {
        "profile": session.profile.name,
        "folder": str(folder),
        "digest": lock.digest,
        "specs": list(lock.specs),
        "packages": len(lock.packages),
        "gfx_targets": list(lock.gfx_targets),
        "virtual_packages": dict(lock.virtual_packages),
        "written": list(made.written),
        "difference": made.difference.as_dict(),
    }
    session.show(data, text)
    return 0


def _words(result: Check, path: Path) -> str:
    if result.verdict is Verdict.FRESH:
        return f"{path} is fresh"
    return "\n".join((f"{path}: {result.verdict.words}", *map(str, result.reasons)))


def _check(session: Session) -> int:
    path = session.workspace.lock_file(session.profile)
    result = check_lock(session.workspace, session.profile)
    session.show({"lock": str(path), **result.as_dict()}, _words(result, path))
    return result.verdict.value


@command.command()
@click.argument("old", type=LOCK)
@click.argument("new", type=LOCK)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Markdown for a pull request.")
def diff(old: Path, new: Path, as_json: bool, as_markdown: bool) -> None:
    """Show what changed between two locks (conda-lock.yml files or their folders)."""
    import json

    if as_json and as_markdown:
        raise ConfigError("--json and --markdown exclude each other", remedy="give one of them")
    difference = compare(read_lock(old), read_lock(new))
    if as_json:
        emit(json.dumps(difference.as_dict(), indent=2, sort_keys=True))
    else:
        emit(markdown(difference) if as_markdown else table(difference))
