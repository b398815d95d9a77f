"""``assembler pin``: resolve names and versions, and write files and hashes into the pin files."""

from __future__ import annotations

import os

import click

from assembler.cli.options import Session, common
from assembler.sources.changes import Change
from assembler.sources.pinning import Pinner


def line(change: Change) -> str:
    """Return one line of the diff."""
    where = os.path.relpath(change.path)
    if not change.old:
        return f"+ {where}: {change.name} {change.new} (sha256 {change.new_sha256[:12]}…)"
    if not change.new:
        return f"- {where}: {change.name} {change.old}"
    if change.old == change.new:
        return (
            f"~ {where}: {change.name} {change.new} (sha256 {change.old_sha256[:12] or 'none'} → "
            f"{change.new_sha256[:12]}…)"
        )
    return f"~ {where}: {change.name} {change.old} → {change.new}"


@click.command()
@common
@click.argument("requests", nargs=-1, metavar="[NAME[==VERSION]]...")
@click.option("--wheels", is_flag=True, help="Resolve the profile's PyPI dependencies instead.")
@click.option("--upgrade", is_flag=True, help="With --wheels: let pinned versions move.")
@click.option("--pre", is_flag=True, help="Take pre-releases too.")
def command(
    session: Session, requests: tuple[str, ...], wheels: bool, upgrade: bool, pre: bool
) -> None:
    """Resolve pins and write their files and hashes into recipes/.

    Without names every pin of the profile keeps its version and gets what it lacks (Debian packages
    take the mirror's newest); a named one moves to the newest, or to the version given. A file that
    has the pinned name but other bytes is refused.
    """
    if wheels and requests:
        raise click.UsageError("--wheels takes no names; edit the profile's .in file")
    if upgrade and not wheels:
        raise click.UsageError("--upgrade goes with --wheels")
    pinner = Pinner(session.workspace, session.profile, session.progress)
    changes = pinner.wheels(upgrade=upgrade) if wheels else pinner.recipes(requests, pre=pre)
    real = [change for change in changes if change.real]
    data = {
        "profile": session.profile.name,
        "unchanged": len(changes) - len(real),
        "changes": [
            {
                "file": os.path.relpath(change.path),
                "name": change.name,
                "old": change.old,
                "new": change.new,
                "sha256": change.new_sha256,
            }
            for change in real
        ],
    }
    words = [line(change) for change in real]
    words.append(f"{len(real)} pins changed, {len(changes) - len(real)} as they were.")
    session.show(data, "\n".join(words))
