"""The ``assembler`` command: finds the sub-commands, turns errors into sentences and exit codes."""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
from typing import NoReturn

import click

from assembler import __version__
from assembler.errors import AssemblerError, NoSpaceError

# name -> (module, help shown in the list); modules load only when their command is called.
COMMANDS: dict[str, str] = {
    "build": "Build every recipe that is not up to date into the channel.",
    "channel": "Check or repair the channel.",
    "clean-image": "Do all that is not up to date: fetch, build, lock, image, verify.",
    "doctor": "Say what this machine can do, what is missing and how to get it.",
    "fetch": "Bring every pinned source into the store, checked by hash.",
    "gfx": "List the GPU code in files, packages and images, by target.",
    "image": "Assemble the OCI image of a lock.",
    "install": "Make an environment from the lock alone.",
    "load": "Load the image into docker or podman on this machine.",
    "lock": "Solve the stack against the channel and write the lock.",
    "pin": "Resolve names and versions, and write files and hashes into the pin files.",
    "mirror": "Copy what the lock names into the channel, or into a folder to hand on.",
    "push": "Push the image to a registry; what is there is not sent.",
    "reproduce": "Make an image again elsewhere and compare every byte.",
    "sbom": "Say what is in an image: CycloneDX, SPDX, provenance.",
    "verify": "Check an image: imports without network or root, GPU code per target.",
}


class Commands(click.Group):
    """Loads ``assembler.cli.<command>`` when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help page."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command, or None when there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"assembler.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="assembler")
def cli() -> None:
    """Conda packages and clean OCI images of the ATOM inference stack for AMD GPUs."""


def _report(error: AssemblerError, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": error.as_dict()}, indent=2, sort_keys=True))  # noqa: T201
    print(f"assembler: {error}", file=sys.stderr)  # noqa: T201
    return error.exit_code


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    as_json = "--json" in arguments
    try:
        result = cli.main(arguments, prog_name="assembler", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Abort:
        print("assembler: interrupted; nothing was replaced.", file=sys.stderr)  # noqa: T201
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except AssemblerError as error:
        return _report(error, as_json=as_json)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" while writing {error.filename}" if error.filename else ""
        full = NoSpaceError(f"the disk is full{where}", remedy="free some room and run it again")
        return _report(full, as_json=as_json)


def leave(code: int) -> NoReturn:
    """End the process at once, after flushing.

    py-rattler's runtime threads can crash an interpreter that is shutting down (seen in 2 to 15 %
    of short programs), which would turn finished work into exit status 139.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> NoReturn:
    """Entry point of the console script."""
    try:
        code = run(sys.argv[1:])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    try:
        leave(code)
    except BrokenPipeError:
        os._exit(code)
