"""``assembler mirror``: everything the lock names in the channel, or in a folder to hand on."""

from __future__ import annotations

from pathlib import Path

import click

from assembler.cli.options import Session, common
from assembler.lock.files import read_lock, write_lock
from assembler.lock.mirror import export, mirror
from assembler.sources.store import Store


@click.command()
@common
@click.option(
    "--export",
    "target",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Also make DIR a folder that needs no network: channel, locks, base packages.",
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Downloads at once.",
)
def command(session: Session, target: Path | None, jobs: int) -> None:
    """Copy every locked package that is not in the channel into it, and write the locks anew.

    Downloads go on where a killed run stopped, and are checked by SHA-256.
    """
    workspace, folder = session.workspace, session.workspace.lock_folder(session.profile)
    store = Store(workspace.store)
    done = mirror(read_lock(folder), workspace.channel, store, session.progress, jobs=jobs)
    written = write_lock(done.lock, folder)
    if target is not None:
        export(workspace, session.profile, done.lock, target.absolute(), session.progress)
    data = {
        "channel": str(workspace.channel),
        "copied": [package.path for package in done.copied],
        "written": list(written),
        "export": str(target.absolute()) if target else None,
    }
    text = (
        f"{len(done.copied)} packages copied; the channel is closed"
        if done.copied
        else "every locked package is in the channel"
    )
    session.show(data, f"{text}\nexported to {target}" if target else text)
