"""``assembler image``: the OCI image of a lock."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO

import click
from rich.filesize import decimal

from assembler.cli.options import Session, common
from assembler.cli.paths import LOCK
from assembler.errors import ConfigError, ImageError
from assembler.image.archive import archive_file, write_archive
from assembler.image.assemble import assemble_all, preview
from assembler.image.compression import Codec
from assembler.image.cut import parse_size
from assembler.image.documents import ARCHITECTURES
from assembler.image.epoch import Epoch
from assembler.image.foreign import ForeignBase
from assembler.image.layout import Layout
from assembler.image.plan import DEFAULT_BUDGET
from assembler.image.reproduction import find_entry
from assembler.image.request import ImageResult, LayerPreview, Options, Pull, Request
from assembler.image.rootfs import write_rootfs
from assembler.image.selection import requests
from assembler.lock.files import read_lock
from assembler.sources.store import Store


def cache_folder(session: Session) -> Path:
    """Return where segments and the unpacked interpreter are kept."""
    return session.workspace.build / "cache"


@click.command("image")
@click.option("--lock", "lock_path", type=LOCK, help="Lock to assemble.")
@click.option("--gfx", multiple=True, metavar="TARGET", help="GPU target, or all; repeatable.")
@click.option("-t", "--tag", metavar="TAG", help="The image's tag [latest, or the target].")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, allow_dash=True),
    help="Layout folder, or the tar (- for stdout).",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(["oci", "archive", "rootfs"]), default="oci",
    show_default=True,
    help="OCI layout, one tar that every engine loads, or a flat tar of the file system.",
)  # fmt: skip
@click.option(
    "--compression", metavar="NAME[:LEVEL]", default="zstd", show_default=True,
    help="zstd or gzip, with a level as in zstd:9; gzip is what docker before 23 reads.",
)  # fmt: skip
@click.option("--level", type=int, help="Compression level [zstd 3, gzip 4]; 9 for releases.")
@click.option(
    "--max-layers", type=int, default=DEFAULT_BUDGET, show_default=True,
    help="Most layers of the image; fewer put more packages into each.",
)  # fmt: skip
@click.option(
    "--max-layer-size", metavar="SIZE",
    help="Cut layers that are larger before compression, as in 5GB [never].",
)  # fmt: skip
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="Workers; never changes bytes.")
@click.option("--cache", type=click.Path(path_type=Path), help="Folder for segments [build/cache].")
@click.option(
    "--base", metavar="IMAGE",
    help="Build upon this image instead of Debian packages: an OCI layout or archive "
    "(FOLDER[:TAG], FILE.tar[:TAG]), or HOST/NAME@sha256:... of a registry.",
)  # fmt: skip
@click.option("--plain-http", is_flag=True, help="The registry of --base has no TLS.")
@click.option(
    "--plan", "only_plan", is_flag=True,
    help="Print the layers, and what a node pulls that holds the image now in the layout.",
)  # fmt: skip
@click.option(
    "--since", metavar="IMAGE",
    help="With --plan: what a node pulls that holds this image instead, named like --base.",
)  # fmt: skip
@common
def command(
    session: Session,
    lock_path: Path | None,
    gfx: tuple[str, ...],
    tag: str | None,
    output: Path | None,
    form: str,
    compression: str,
    level: int | None,
    max_layers: int,
    max_layer_size: str | None,
    jobs: int | None,
    cache: Path | None,
    base: str | None,
    plain_http: bool,
    only_plan: bool,
    since: str | None,
) -> None:
    """Assemble the OCI image of a lock from the channel, layer by layer."""
    started = time.monotonic()
    workspace, profile = session.workspace, session.profile
    lock = read_lock(lock_path or workspace.lock_file(profile))
    wanted = requests(lock, workspace.channel, profile, gfx, tag)
    cache = cache or cache_folder(session)
    architecture = ARCHITECTURES.get(lock.platform, ("",))[0]
    options = Options(
        codec=Codec.parse(compression, level),
        budget=max_layers,
        epoch=Epoch.from_environment(),
        jobs=jobs,
        max_layer_size=parse_size(max_layer_size) if max_layer_size else None,
        base=_base(session, base, architecture, cache, plain_http=plain_http),
    )
    layout = workspace.image_layout(profile) if form != "oci" or not output else output
    if since is not None and not only_plan:
        raise ConfigError("--since says what --plan compares with", remedy="add --plan")
    if only_plan:
        held = _held(since, architecture, plain_http=plain_http)
        _show_plan(session, wanted, layout, options, cache, since, held)
        return
    if str(output) == "-" and form == "oci":
        raise ConfigError("a layout is a folder", remedy="add --format archive to write to stdout")
    if str(output) == "-" and sys.stdout.isatty():
        raise ConfigError(
            "an image would go to the terminal", remedy="pipe it: ... -o - | docker load"
        )
    results = assemble_all(
        wanted,
        workspace.channel,
        profile.image,
        layout,
        Store(workspace.store),
        cache,
        session.progress,
        options=options,
    )
    seconds = time.monotonic() - started
    if form != "oci":
        _write_tar(session, results, form, output)
        return
    session.show(
        {"images": [result.as_dict() for result in results], "seconds": round(seconds, 3)},
        "\n".join(describe(result, seconds) for result in results),
    )


# What talks to registries takes a second to load: only those who name another image pay for it.


def _base(
    session: Session, base: str | None, architecture: str, cache: Path, *, plain_http: bool
) -> ForeignBase | None:
    if base is None:
        return None
    from assembler.image.survey import read_base

    return read_base(base, architecture, cache, session.progress, plain_http=plain_http)


def _held(since: str | None, architecture: str, *, plain_http: bool) -> frozenset[str] | None:
    if since is None:
        return None
    from assembler.image.bases import held_layers

    return held_layers(since, architecture, plain_http=plain_http)


def _write_tar(
    session: Session, results: tuple[ImageResult, ...], form: str, output: Path | None
) -> None:
    """Write the archive or the file system of what was just assembled."""
    layout = Layout(results[0].layout)
    if form == "rootfs" and len(results) > 1:
        raise ConfigError("several images have no one file system", remedy="give one --gfx")

    def write(sink: IO[bytes]) -> None:
        if form == "rootfs":
            write_rootfs(layout, find_entry(layout, results[0].tag), sink, session.progress)
        else:
            write_archive(layout, sink, session.progress)

    suffix = ".rootfs.tar" if form == "rootfs" else ".tar"
    place = output or layout.path.with_name(f"{layout.path.name}{suffix}")
    if str(place) == "-":
        try:
            write(sys.stdout.buffer)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            # What is still buffered has no reader; leaving must not try to write it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise ImageError(
                "the reader of the pipe went away before the end",
                remedy="look at its own message",
            ) from None
        return
    with archive_file(place) as sink:
        write(sink)
    digests = "\n".join(f"{result.name}:{result.tag} {result.digest}" for result in results)
    session.show(
        {"archive": str(place), "images": [result.as_dict() for result in results]},
        f"{place}\n{digests}",
    )


def describe(result: ImageResult, seconds: float) -> str:
    """Return what people want to know of a finished image."""
    state = "up to date" if result.up_to_date else f"assembled in {seconds:.1f} s"
    sizes = (
        f"{decimal(result.compressed_size)} compressed, {decimal(result.unpacked_size)} unpacked"
    )
    lines = [
        f"{result.name}:{result.tag} {state}",
        f"  {result.layout}",
        f"  {result.digest}",
        f"  {sizes}, {len(result.layers)} layers",
    ]
    lines += [
        f"    {decimal(layer.compressed_size):>9}  {layer.name}{_members(layer.packages)}"
        for layer in result.layers
    ]
    return "\n".join(lines)


def _members(packages: tuple[str, ...], most: int = 4) -> str:
    if len(packages) < 2:
        return ""
    shown = ", ".join(packages[:most])
    return f": {shown}" + (f" and {len(packages) - most} more" if len(packages) > most else "")


def _show_plan(
    session: Session,
    wanted: tuple[Request, ...],
    layout: Path,
    options: Options,
    cache: Path,
    since: str | None,
    held: frozenset[str] | None,
) -> None:
    workspace = session.workspace
    plans = {
        request.tag: preview(
            request.lock,
            workspace.channel,
            session.profile.image,
            layout,
            Store(workspace.store),
            cache,
            options=options,
            since=held,
        )
        for request in wanted
    }
    holding = since or f"what is now in {layout}"
    text = "\n".join(_plan_text(tag, layers, holding) for tag, layers in plans.items())
    session.show(
        {
            "plan": {tag: [asdict(layer) for layer in layers] for tag, layers in plans.items()},
            "pull": {tag: asdict(Pull.of(layers)) for tag, layers in plans.items()},
            "since": since,
        },
        text,
    )


def _plan_text(tag: str, layers: tuple[LayerPreview, ...], holding: str) -> str:
    pull = Pull.of(layers)
    rows = [
        f"  {'held' if layer.held else 'pulled':<7} {decimal(layer.size):>9}"
        f"{' ' if layer.digest else '~'} {layer.name}{_members(layer.packages)}"
        for layer in layers
    ]
    lines = [
        f"{tag}: {len(layers)} layers",
        *rows,
        (
            f"  a node that holds {holding} pulls {decimal(pull.size)} in {pull.layers} of "
            f"{pull.image_layers} layers, and the configuration"
        ),
    ]
    if not all(layer.digest for layer in layers):
        lines.append("  ~ is the size of packages whose layer was never written")
    return "\n".join(lines)
