"""``assembler fetch``: every pinned source in the store, checked by hash."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.filesize import decimal

from assembler.cli.options import Session, common, fetching
from assembler.progress import Progress
from assembler.sources.fetch import FetchResult, fetch
from assembler.sources.given import take


def left_out(name: str) -> str:
    """Return the sentence that says how to give a source only the user has."""
    return (
        f"{name} is left out, since its source tree was not given: "
        f"add --source {name}=PATH (a checkout) or --source {name}=URL@COMMIT."
    )


def report(result: FetchResult, progress: Progress) -> None:
    """Tell what moved and what is left out; every command that fetches calls it once."""
    for move in result.moved:
        progress.say(f"{move.name}: {move.old} is no longer served, re-pinned to {move.new}")
    for name in result.left_out:
        progress.say(left_out(name))


def summary(result: FetchResult) -> str:
    """Return the outcome in one line."""
    if not result.fetched:
        return f"{result.cached} sources are in the store; nothing to fetch."
    return (
        f"fetched {len(result.fetched)} files ({decimal(result.fetched_size)}) in "
        f"{result.seconds:.1f} s; {result.cached} were in the store."
    )


@click.command()
@common
@click.option("--verify", is_flag=True, help="Hash stored files again; rotten ones are refetched.")
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="Downloads at once.",
)
@fetching
def command(
    session: Session, locked: bool, offline: bool, verify: bool, jobs: int, sources: tuple[str, ...]
) -> None:
    """Bring every pinned source into the store, checked by hash.

    Downloads run side by side, go on where a killed one stopped, and use pip's and apt's own
    configuration. Exit code 5 when a file is to be had nowhere, 4 when its hash is wrong.
    """
    result = fetch(
        session.workspace,
        session.profile,
        session.progress,
        jobs=jobs,
        locked=locked,
        offline=offline,
        verify=verify,
        given=take(session.workspace, sources),
    )
    report(result, session.progress)
    data = {
        "profile": session.profile.name,
        "folder": str(session.workspace.sources(session.profile)),
        "fetched": list(result.fetched),
        "fetched_bytes": result.fetched_size,
        "cached": result.cached,
        "moved": [asdict(move) for move in result.moved],
        "left_out": list(result.left_out),
        "seconds": round(result.seconds, 3),
    }
    session.show(data, summary(result))
