"""``assembler verify``: run the gates on images, packages, folders and channels."""

from __future__ import annotations

from pathlib import Path

import click

from assembler.cli.options import Session, another_image, common
from assembler.cli.output import emit
from assembler.cli.paths import Existing
from assembler.errors import VerifyError
from assembler.verify import formats
from assembler.verify.sandbox import NAMES
from assembler.verify.session import GATES, exit_code, explain_file, request_for, verify


@click.command("verify")
@click.argument(
    "paths",
    nargs=-1,
    type=Existing(
        "file or folder",
        "name an OCI layout or archive, a .conda, a wheel, a folder or a channel",
    ),
)
@click.option(
    "--gate",
    "gates",
    multiple=True,
    metavar="NAME",
    help=f"Only this gate, repeatable: {', '.join(GATES)}.",
)
@click.option(
    "--format", "style", type=click.Choice(formats.NAMES), help="How to print the report [text]."
)
@click.option("--sandbox", type=click.Choice(NAMES), help="Run smokes with this, not the first.")
@click.option(
    "--policy",
    "extra",
    type=Existing("policy", "name a readable TOML file"),
    help="TOML file laid over the profile's policy.",
)
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for unpacked copies [build/verify].",
)
@click.option(
    "--why", metavar="FILE", help="Show how the loader finds each library of a file, no gates."
)
@common
def command(
    session: Session,
    paths: tuple[Path, ...],
    gates: tuple[str, ...],
    style: str | None,
    sandbox: str | None,
    extra: Path | None,
    scratch: Path | None,
    why: str | None,
) -> int:
    """Check what PATHS hold (default: the profile's image) and say what is wrong.

    A path is an OCI layout, an uncompressed archive of one, a .conda package, a wheel, a folder or
    a channel. The exit status is 0, the failing gate's own, or 11 when several gates failed.
    """
    layout = session.workspace.image_layout(session.profile)
    if not paths and not layout.is_dir():
        raise VerifyError(
            f"there is no image of profile {session.profile.name} at {layout}",
            remedy=f"make it with `assembler clean-image`{another_image(session)}, or name what to "
            "verify",
        )
    request = request_for(
        session.workspace,
        session.profile,
        paths=paths,
        gates=gates,
        sandbox=sandbox,
        extra=extra,
        scratch=scratch,
    )
    if why is not None:
        lines = explain_file(request, why, session.progress)
        session.show({"file": why, "lines": lines.splitlines()}, lines)
        return 0
    report = verify(request, session.progress)
    emit(formats.render(report, style or ("json" if session.as_json else "text")))
    return exit_code(report)
