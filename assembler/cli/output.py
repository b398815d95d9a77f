"""Results on stdout: what a reader who has read enough, or a narrow terminal, may do to them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click


def emit(text: str | bytes, *, nl: bool = True) -> None:
    """Print a result; a reader of the pipe who went away changes nothing, least an exit code."""
    try:
        click.echo(text, nl=nl)
    except BrokenPipeError:
        # What is still buffered has no reader; leaving must not try to write it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines: the first column to the left, the others to the right, nothing cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "    ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
