"""``assembler channel``: is the channel whole, and making it so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from assembler.channel.index import check as check_channel
from assembler.channel.index import read_records
from assembler.channel.index import repair as repair_channel
from assembler.channel.location import channel_url
from assembler.channel.scan import Problem
from assembler.cli.options import Session, common
from assembler.errors import ChannelError


@click.group()
def command() -> None:
    """Check or repair the channel, or print its URL."""


def _data(session: Session, problems: Sequence[Problem]) -> dict[str, Any]:
    return {
        "channel": str(session.workspace.channel),
        "problems": [asdict(problem) for problem in problems],
    }


@command.command()
@common
def check(session: Session) -> int:
    """Read every package whole and compare it with the index; exit code 7 if something is wrong."""
    problems = check_channel(session.workspace.channel, session.progress)
    count = len(read_records(session.workspace.channel)) if not problems else 0
    words = [f"{session.workspace.channel}: {count} packages, all whole and indexed"]
    if problems:
        words = [f"{problem.kind}: {problem}" for problem in problems]
        words.append("`assembler channel repair` puts it right")
    session.show(_data(session, problems), "\n".join(words))
    return ChannelError.exit_code if problems else 0


@command.command()
@common
def repair(session: Session) -> None:
    """Set damaged and foreign files apart and index what is left."""
    problems = repair_channel(session.workspace.channel, session.progress)
    words = "\n".join(f"was {problem.kind}: {problem}" for problem in problems)
    session.show(_data(session, problems), words or "there was nothing to repair")


@command.command()
@common
def url(session: Session) -> None:
    """Print the channel's URL, spelled as every lock and solver spells it."""
    spelled = channel_url(session.workspace.channel)
    session.show({"url": spelled}, spelled)
