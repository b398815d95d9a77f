"""``assembler load``: the image into a container engine on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from assembler.cli.options import Session, another_image, common
from assembler.cli.paths import LAYOUT
from assembler.errors import ImageError
from assembler.image.engine import LOADERS, find_engine, load
from assembler.image.layout import Layout


def layout_of(session: Session, path: Path | None) -> Layout:
    """Return the given layout, or the profile's; ImageError when there is none."""
    layout = Layout(path or session.workspace.image_layout(session.profile))
    if not layout.entries():
        raise ImageError(
            f"there is no image at {layout.path}",
            remedy=f"make it with `assembler image`{another_image(session)}, or name an OCI layout",
        )
    return layout


@click.command("load")
@click.argument("layout", required=False, type=LAYOUT)
@click.option("--engine", type=click.Choice(tuple(LOADERS)), help="Not the first that answers.")
@common
def command(session: Session, layout: Path | None, engine: str | None) -> None:
    """Load the images of LAYOUT (default: the profile's) into docker or podman."""
    source = layout_of(session, layout)
    found = find_engine(engine)
    words = load(source, found, session.progress)
    session.show({"engine": found.name, "version": found.version, "output": words}, words)
