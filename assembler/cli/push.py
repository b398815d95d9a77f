"""``assembler push``: the image to a registry."""

from __future__ import annotations

from pathlib import Path

import click
from rich.filesize import decimal

from assembler.cli.load import layout_of
from assembler.cli.options import Session, common
from assembler.cli.paths import LAYOUT
from assembler.image.registry import Pusher, Reference


@click.command("push")
@click.argument("reference")
@click.option("--layout", type=LAYOUT, help="OCI layout [the profile's].")
@click.option("-t", "--tag", "tags", multiple=True, metavar="TAG", help="Tag; repeatable.")
@click.option("--plain-http", is_flag=True, help="A registry without TLS.")
@common
def command(
    session: Session,
    reference: str,
    layout: Path | None,
    tags: tuple[str, ...],
    plain_http: bool,
) -> None:
    """Push the images of a layout to REFERENCE (HOST/NAME[:TAG]); what is there is not sent.

    Logins are docker's: run `docker login HOST` (or podman's, skopeo's) once.
    """
    where = Reference.parse(reference)
    pusher = Pusher(layout_of(session, layout), where, session.progress, plain_http=plain_http)
    done = pusher.push((*((where.tag,) if where.tag and tags else ()), *tags))
    lines = [
        f"{name}\n{where.at(digest)}"
        for name, digest in zip(done.references, done.digests, strict=False)
    ]
    sent = f"sent {done.sent_blobs} blobs of {decimal(done.sent_bytes)}"
    lines.append(f"{sent}, {done.present_blobs} were there")
    session.show(done.as_dict(), "\n".join(lines))
