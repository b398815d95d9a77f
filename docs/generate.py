"""Write the reference pages that come from the code: python docs/generate.py [--check]."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from assembler import errors
from assembler.cli.main import COMMANDS
from assembler.lock.check import Verdict
from assembler.stack import Stack
from assembler.verify.session import GATES

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Made by docs/generate.py from the code; change it there. -->\n\n"


def _subcommands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _subcommands(f"{name} {child.name}", child)


def commands() -> str:
    """Return the page of all commands: what `--help` says, at a fixed width."""
    parts = [f"# Commands\n\n{NOTE}"]
    for name in sorted(COMMANDS):
        module = importlib.import_module(f"assembler.cli.{name.replace('-', '_')}")
        for title, command in _subcommands(name, module.command):
            context = click.Context(
                command,
                info_name=f"assembler {title}",
                terminal_width=100,
                max_content_width=100,
            )
            parts.append(f"## assembler {title}\n\n```text\n{command.get_help(context)}\n```\n\n")
    return "".join(parts).rstrip() + "\n"


def exit_codes() -> str:
    """Return the table of exit codes."""
    rows = [
        (0, "done, or everything up to date"),
        (1, "a fault of the program; the traceback is for a bug report"),
        (2, "the command line is wrong (unknown option, missing argument)"),
    ]
    for _name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.AssemblerError) and kind is not errors.AssemblerError:
            meaning = (kind.__doc__ or "").splitlines()[0].rstrip(".")
            rows.append((kind.exit_code, f"{kind.kind}: {meaning[0].lower()}{meaning[1:]}"))
    rows += [
        (verdict.value, f"`lock --check`: {verdict.words}") for verdict in Verdict if verdict.value
    ]
    rows += [
        (gate.exit_code, f"`verify`: gate {gate.name} alone failed") for gate in GATES.values()
    ]
    rows.append((130, "interrupted (SIGINT, SIGTERM); what was finished stays"))
    lines = [f"# Exit codes\n\n{NOTE}| code | meaning |\n|---|---|\n"]
    lines += [f"| {code} | {meaning} |\n" for code, meaning in sorted(rows)]
    lines.append(
        "\nEvery error is one sentence on stderr: what was seen, and what to do. With `--json`\n"
        'the same stands on stdout as `{"error": {"kind", "exit_code", "saw", "remedy"}}`.\n'
        "Channel, lock and image are each replaced whole or not at all. `clean-image` is a chain\n"
        "of stages: one that fails leaves what it makes as it was, and what came before it stays.\n"
        "Its exit code is 11 when gates fail; `verify` then says which.\n"
    )
    return "".join(lines)


def pages() -> dict[Path, str]:
    """Return every generated page by file."""
    return {
        REFERENCE / "commands.md": commands(),
        REFERENCE / "exit-codes.md": exit_codes(),
        REFERENCE / "stack.schema.json": json.dumps(
            Stack.model_json_schema(), indent=2, sort_keys=True
        )
        + "\n",
    }


def main() -> int:
    """Write the pages, or with ``--check`` name the stale ones."""
    stale = [
        file
        for file, text in pages().items()
        if not file.is_file() or file.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv:
        for file in stale:
            print(f"{file} is stale: python docs/generate.py", file=sys.stderr)
        return 1 if stale else 0
    for file in stale:
        file.write_text(pages()[file], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
