"""``assembler install``: an environment from the lock alone."""

from __future__ import annotations

from pathlib import Path

import click

from assembler.cli.options import Session, common
from assembler.cli.paths import LOCK
from assembler.lock.files import read_lock
from assembler.lock.install import install


@click.command()
@common
@click.option(
    "-p",
    "--prefix",
    required=True,
    type=click.Path(path_type=Path),
    help="The environment: a new or empty folder, or an environment, which is replaced.",
)
@click.option(
    "--lock",
    "lock_path",
    type=LOCK,
    help="conda-lock.yml [locks/<profile>/conda-lock.yml].",
)
@click.option("--verify", is_flag=True, help="Check every file before it is put in place.")
def command(session: Session, prefix: Path, lock_path: Path | None, verify: bool) -> None:
    """Make an environment from the lock alone; no solving, and no network if the channel is closed.

    Every package is hashed against the lock first. The environment is made beside PREFIX and put
    in its place whole.
    """
    lock = read_lock(lock_path or session.workspace.lock_file(session.profile))
    install(lock, session.workspace.channel, prefix, session.progress, verify=verify)
    data = {
        "prefix": str(prefix.absolute()),
        "packages": len(lock.packages),
        "lock_digest": lock.digest,
        "verified": verify,
    }
    words = ", every file checked" if verify else ""
    session.show(data, f"{prefix}: {len(lock.packages)} packages{words}")
