"""``assembler gfx``: list the GPU code in files, packages, folders and images."""

from __future__ import annotations

import errno
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from rich.filesize import decimal

from assembler.cli.output import columns, emit
from assembler.cli.paths import Existing
from assembler.errors import ConfigError, NoSpaceError, VerifyError
from assembler.progress import choose_progress
from assembler.verify.gfx import CodeObject, Trouble, inventory, summarise

FORMAT = 1
"""Version of the JSON; it changes when a field changes its meaning."""


PATH = Existing("file or folder", "name one that exists")


@click.command("gfx")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=PATH)
@click.option("--list", "each", is_flag=True, help="Show every code object, not only the sums.")
@click.option("--kernels", is_flag=True, help="Read kernel names, registers and LDS too.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(paths: tuple[Path, ...], each: bool, kernels: bool, as_json: bool, quiet: bool) -> int:
    """List the GPU code in PATH…: code objects by target.

    A path is a file, a .conda package, a wheel or another archive, an OCI layout or any folder.
    Exit code 11 when something that should be GPU code cannot be read.
    """
    found: dict[str, list[CodeObject | Trouble]] = {}
    progress = choose_progress(quiet=quiet)
    for path in paths:
        if not path.is_file() and not path.is_dir():
            raise ConfigError(
                f"{path} is neither a file nor a folder", remedy="name one that can be read"
            )
        with progress.task(f"read {path.name or path}"):
            try:
                found[str(path)] = list(inventory(path, kernels=kernels))
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise NoSpaceError(
                        f"{path} cannot be unpacked into {tempfile.gettempdir()}: the disk is full",
                        remedy="free some room, or set TMPDIR to a folder with more",
                    ) from None
                raise ConfigError(
                    f"{error.filename or path} cannot be read ({error.strerror})",
                    remedy="see that it is a readable file or folder",
                ) from None
    if as_json:
        emit(json.dumps(_as_data(found), indent=2, sort_keys=True))
    else:
        emit("\n".join(_text(found, each=each or kernels)))
    troubles = [
        _shown(f"{path}: {item.path}, offset {item.offset}: {item.reason}")
        for path, items in found.items()
        for item in items
        if isinstance(item, Trouble)
    ]
    if not troubles:
        return 0
    more = f" (and {len(troubles) - 1} more places)" if len(troubles) > 1 else ""
    click.echo(
        f"assembler: {troubles[0]}{more}; build or fetch it again, or leave it out by a rule.",
        err=True,
    )
    return VerifyError.exit_code


def _as_data(found: dict[str, list[CodeObject | Trouble]]) -> dict[str, object]:
    return {
        "format": FORMAT,
        "subjects": [
            {
                "path": path,
                "targets": [
                    {name: getattr(one, name) for name in one.__slots__} for one in summarise(items)
                ],
                "code_objects": [i.as_dict() for i in items if isinstance(i, CodeObject)],
                "troubles": [i.as_dict() for i in items if isinstance(i, Trouble)],
            }
            for path, items in found.items()
        ],
    }


def _text(found: dict[str, list[CodeObject | Trouble]], *, each: bool) -> Iterator[str]:
    for path, items in found.items():
        yield _shown(path)
        objects = [item for item in items if isinstance(item, CodeObject)]
        if each:
            yield from map(_shown, _lines(objects))
        if not objects:
            yield "  no GPU code"
            continue
        sums = summarise(items)
        counted = any(one.kernels is not None for one in sums)
        rows = [("target", "code objects", "files", "size", *(["kernels"] if counted else []))]
        for one in sums:
            count = "?" if one.kernels is None else str(one.kernels)
            facts = (str(one.objects), str(one.files), decimal(one.size))
            rows.append((one.target, *facts, *([count] if counted else [])))
        yield from (f"  {line}" for line in columns(rows))


def _shown(text: str) -> str:
    """Return a name from an archive so that a terminal can show it: no control characters."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _lines(objects: list[CodeObject]) -> Iterator[str]:
    for one in objects:
        facts = [one.target, f"{one.size} bytes", one.kind.value]
        if one.code_object_version is not None:
            facts.append(f"V{one.code_object_version}")
        if one.compression:
            facts.append(one.compression)
        where = f"{one.section} " if one.section else ""
        yield f"  {one.path} {where}at {one.offset}: {', '.join(facts)}"
        for kernel in one.kernels or ():
            numbers = ", ".join(
                f"{name} {value}"
                for name, value in (
                    ("VGPRs", kernel.vgprs),
                    ("AGPRs", kernel.agprs),
                    ("SGPRs", kernel.sgprs),
                    ("LDS", kernel.lds),
                    ("scratch", kernel.scratch),
                    ("wavefront", kernel.wavefront),
                )
                if value is not None
            )
            yield f"    {kernel.name}: {numbers}"
