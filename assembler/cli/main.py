"""The ``assembler`` command: finds the sub-commands, turns errors into sentences and exit codes."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import click

from assembler import __version__
from assembler.cli.entry import INTERRUPTED, REMEDY, SAW, SENTENCE, raise_from_now_on
from assembler.errors import AccessError, AssemblerError, NoSpaceError

COMPLETION = "_ASSEMBLER_COMPLETE"  # set by the shell's completion script, as click defines it

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
    "test": "Run the tests that packages carry, each in an environment of its own.",
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
        raise_from_now_on()
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
    _tell(error.as_dict(), str(error), as_json=as_json)
    return error.exit_code


def _tell(facts: dict[str, object], sentence: str, *, as_json: bool) -> None:
    if as_json:
        _print_error(facts)
    with contextlib.suppress(OSError):
        print(f"assembler: {sentence}", file=sys.stderr)  # noqa: T201


def _print_error(facts: dict[str, object]) -> None:
    # What could not be written before is still buffered, and fails again.
    with contextlib.suppress(OSError):
        print(json.dumps({"error": facts}, indent=2, sort_keys=True), flush=True)  # noqa: T201


def _has_current_folder() -> bool:
    try:
        return bool(Path.cwd())
    except FileNotFoundError:
        return False


def _from_os(error: OSError) -> AssemblerError:
    """Return what the system refused as a sentence."""
    where = f" while using {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(f"the disk is full{where}", remedy="free some room and run it again")
    if error.filename is None and not _has_current_folder():
        return AccessError(
            "the current folder is not there any more", remedy="change to one that exists"
        )
    name = error.filename or "a file"
    return AccessError(
        f"{name} cannot be used ({error.strerror or error})",
        remedy="check what it is, its owner and its rights, and run it again",
    )


def _invoke(arguments: list[str]) -> int:
    if COMPLETION in os.environ:
        cli.main(arguments, prog_name="assembler")
    try:
        # Not click's own main: it takes interrupts and broken pipes for itself.
        with cli.make_context("assembler", list(arguments)) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    return result if isinstance(result, int) else 0


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    as_json = "--json" in arguments
    try:
        return _invoke(arguments)
    except (click.exceptions.Abort, KeyboardInterrupt):
        facts: dict[str, object] = {
            "kind": "interrupted",
            "exit_code": INTERRUPTED,
            "saw": SAW,
            "remedy": REMEDY,
        }
        _tell(facts, SENTENCE, as_json=as_json)
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        if as_json:
            facts = {
                "kind": "usage",
                "exit_code": error.exit_code,
                "saw": error.format_message(),
                "remedy": "see --help",
            }
            _print_error(facts)
        return error.exit_code
    except AssemblerError as error:
        return _report(error, as_json=as_json)
    except BrokenPipeError:
        return 0  # whoever read the result has read enough
    except OSError as error:
        if "-v" in arguments or "--verbose" in arguments:
            traceback.print_exc()
        return _report(_from_os(error), as_json=as_json)


def leave(code: int) -> NoReturn:
    """End the process at once, after flushing; a result that cannot be written fails the command.

    py-rattler's runtime threads can crash an interpreter that is shutting down
    (docs/decisions/0006-leaving-the-process.md), which would turn finished work into status 139.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError:
        code = code or NoSpaceError.exit_code
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


def _open_streams() -> None:
    """Give a process that was started without stdout or stderr somewhere to write."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def main() -> NoReturn:
    """Run the process's own command line and end it; ``entry`` calls it."""
    _open_streams()
    try:
        code = run(sys.argv[1:])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    leave(code)
