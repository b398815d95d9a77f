"""``assembler reproduce``: the same image again, elsewhere, and where it differs if it does."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from assembler.cli.load import layout_of
from assembler.cli.options import Session, common
from assembler.cli.paths import LAYOUT, LOCK
from assembler.errors import VerifyError
from assembler.image.reproduction import Recipe, find_entry, needed_gfx, reproduce
from assembler.lock.files import read_lock


@click.command("reproduce")
@click.argument("layout", required=False, type=LAYOUT)
@click.option("-t", "--tag", metavar="TAG", help="Which image, when the layout has several.")
@click.option("--lock", "lock_path", type=LOCK, help="The image's lock.")
@common
def command(session: Session, layout: Path | None, tag: str | None, lock_path: Path | None) -> None:
    """Make the image of LAYOUT again from its lock and compare every byte.

    It is made in another folder, with another time zone, umask, home and number of workers.
    """
    workspace, profile = session.workspace, session.profile
    source = layout_of(session, layout)
    entry = find_entry(source, tag)
    manifest = source.document(entry["digest"]) or {}
    name = entry.get("annotations", {}).get("org.opencontainers.image.ref.name", "latest")
    recipe = Recipe.of(manifest.get("annotations", {}), name)
    lock_file = lock_path or workspace.lock_file(profile)
    gfx = needed_gfx(recipe, read_lock(lock_file), workspace.channel, profile)
    workspace.build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="reproduce-", dir=workspace.build) as scratch:
        found = reproduce(
            workspace, profile, source, entry, lock_file, gfx, recipe, Path(scratch),
            session.progress,
        )  # fmt: skip
    if found.difference is not None:
        raise VerifyError(
            f"{source.path} is not what its lock makes ({found.difference})",
            remedy="rebuild it, or find out what changed it" if found.digest == found.again
            else "compare the assemblers' and compressors' versions in the labels",
        )  # fmt: skip
    session.show(asdict(found), f"identical: {found.digest}")
