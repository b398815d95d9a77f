"""The command line: one thin file per command."""

from assembler.cli.main import main

__all__ = ["main"]
