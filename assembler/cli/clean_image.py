"""``assembler clean-image``: everything from the recipes to a verified image."""

from __future__ import annotations

import os

import click
from rich.filesize import decimal

from assembler.cli.fetch import report
from assembler.cli.options import Session, common, fetching
from assembler.pipeline import Outcome, Pipeline, Wishes, as_dict
from assembler.sources.given import take
from assembler.verify.sandbox import NAMES


def table(outcome: Outcome) -> str:
    """Return the stages with their wall times, then what the next command needs."""
    lines = [f"{stage.name:8}{stage.seconds:8.1f} s  {stage.words}" for stage in outcome.stages]
    lines.append(f"{'total':8}{outcome.seconds:8.1f} s")
    image = outcome.image
    if image is not None:
        lines += [
            "everything is up to date" if outcome.up_to_date else "done",
            f"digest      {image.digest}",
            f"gfx targets {' '.join(outcome.gfx_targets) or 'none'}",
            f"compressed  {decimal(image.compressed_size)} in {len(image.layers)} layers",
            f"unpacked    {decimal(image.unpacked_size)}",
            f"oci:{image.layout}:{image.tag}",
        ]
    return "\n".join(lines)


@click.command("clean-image")
@click.option("-j", "--jobs", type=click.IntRange(1), help="Packages at a time [CPUs].")
@click.option(
    "--gfx",
    multiple=True,
    metavar="TARGET",
    help="Only these GPU targets (repeatable); 'all' takes every one [as locked, else all].",
)
@fetching
@click.option("--sandbox", type=click.Choice(NAMES), help="Run smokes with this, not the first.")
@click.option(
    "--keep-failed", is_flag=True,
    help="Keep an image that fails verify, as <its place>.failed, to look into it.",
)  # fmt: skip
@common
def command(
    session: Session,
    locked: bool,
    offline: bool,
    jobs: int | None,
    gfx: tuple[str, ...],
    sources: tuple[str, ...],
    sandbox: str | None,
    keep_failed: bool,
) -> None:
    """Do all that is not up to date: fetch, build, lock, image, verify.

    Debian packages that the mirror no longer serves are re-pinned and named. --locked refuses that,
    and a lock that is not fresh. The image at its place is replaced only by one that passed verify.
    """
    wishes = Wishes(
        locked=locked,
        offline=offline,
        jobs=jobs or os.cpu_count() or 1,
        gfx=gfx,
        given=take(session.workspace, sources),
        sandbox=sandbox,
        keep_failed=keep_failed,
    )
    pipeline = Pipeline(session.workspace, session.profile, session.progress, wishes)
    fetched = pipeline.build_channel()
    report(fetched, session.progress)
    outcome = pipeline.finish()
    session.show(as_dict(outcome), table(outcome))
