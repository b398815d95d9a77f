"""``assembler sbom``: what is in an image, for people's scanners and lawyers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from assembler.cli.load import layout_of
from assembler.cli.options import Session, common
from assembler.cli.output import emit
from assembler.cli.paths import LAYOUT, LOCK
from assembler.image.layout import Layout
from assembler.image.reproduction import Recipe, find_entry, needed_gfx
from assembler.image.selection import narrow
from assembler.lock.files import read_lock
from assembler.lock.model import Lock
from assembler.report.attestation import Attestation, attach
from assembler.report.inventory import Inventory, Subject, take_inventory
from assembler.report.provenance import IN_TOTO, provenance
from assembler.report.sbom import CYCLONEDX, SPDX, cyclonedx, spdx

FORMATS: dict[str, tuple[str, str, Callable[[Inventory, Subject], bytes]]] = {
    "cyclonedx": (CYCLONEDX, "sbom.cdx.json", cyclonedx),
    "spdx": (SPDX, "sbom.spdx.json", spdx),
}


def _lock_of(session: Session, manifest: dict[str, Any], lock_path: Path | None, tag: str) -> Lock:
    """Return the lock an image was made from; LockError when it is another."""
    workspace, profile = session.workspace, session.profile
    lock = read_lock(lock_path or workspace.lock_file(profile))
    recipe = Recipe.of(manifest.get("annotations", {}), tag)
    for target in needed_gfx(recipe, lock, workspace.channel, profile):
        lock = narrow(lock, workspace.channel, profile, target)
    return lock


def _documents(
    session: Session, layout: Layout, entry: dict[str, Any], lock_path: Path | None
) -> tuple[Inventory, Subject, Lock, dict[str, str]]:
    manifest = layout.document(entry["digest"]) or {}
    labels = manifest.get("annotations", {})
    tag = entry.get("annotations", {}).get("org.opencontainers.image.ref.name", "latest")
    lock = _lock_of(session, manifest, lock_path, tag)
    subject = Subject(
        name=labels.get("org.opencontainers.image.title", session.profile.image.name),
        tag=tag,
        digest=entry["digest"],
        created=labels.get("org.opencontainers.image.created", "1970-01-01T00:00:00Z"),
    )
    return take_inventory(lock, session.workspace.channel), subject, lock, labels


@click.command("sbom")
@click.argument("layout", required=False, type=LAYOUT)
@click.option("-t", "--tag", metavar="TAG", help="Which image, when the layout has several.")
@click.option("--lock", "lock_path", type=LOCK, help="The image's lock.")
@click.option(
    "--format", "form", type=click.Choice([*FORMATS, "provenance"]), default="cyclonedx",
    show_default=True,
    help="Which document; provenance is SLSA's.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, allow_dash=True), default="-",
    help="File to write [stdout].",
)  # fmt: skip
@click.option(
    "--attach", "attached", is_flag=True,
    help="Put SBOMs and provenance into the layout, where they travel with the image.",
)  # fmt: skip
@common
def command(
    session: Session,
    layout: Path | None,
    tag: str | None,
    lock_path: Path | None,
    form: str,
    output: Path,
    attached: bool,
) -> None:
    """Write the bill of materials of the image in LAYOUT, or attach all documents to it."""
    source = layout_of(session, layout)
    if attached:
        _attach(session, source, tag, lock_path)
        return
    found = _documents(session, source, find_entry(source, tag), lock_path)
    inventory, subject, lock, labels = found
    if form == "provenance":
        data = provenance(inventory, subject, lock, labels)
    else:
        data = FORMATS[form][2](inventory, subject)
    if str(output) == "-":
        emit(data, nl=False)
    else:
        output.write_bytes(data)
        if not output.is_relative_to("/dev"):  # whose reader takes every line for the document
            facts = {"file": str(output), "format": form, "image": subject.digest}
            session.show({**facts, "bytes": len(data)}, str(output))


def _attach(session: Session, source: Layout, tag: str | None, lock_path: Path | None) -> None:
    images = [entry for entry in source.entries() if "platform" in entry]
    chosen = images if tag is None else [find_entry(source, tag)]
    documents: dict[str, list[Attestation]] = {}
    created = ""
    for entry in chosen:
        inventory, subject, lock, labels = _documents(session, source, entry, lock_path)
        created = max(created, subject.created)
        documents[entry["digest"]] = [
            *(Attestation(kind, title, make(inventory, subject))
              for kind, title, make in FORMATS.values()),
            Attestation(
                IN_TOTO, "provenance.intoto.json", provenance(inventory, subject, lock, labels)
            ),
        ]  # fmt: skip
    digests = attach(source, documents, created, session.progress)
    session.show({"attached": list(digests)}, "\n".join(digests))
