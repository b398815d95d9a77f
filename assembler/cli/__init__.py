"""The command line: one thin file per command."""

from assembler.cli.entry import main

__all__ = ["main"]
