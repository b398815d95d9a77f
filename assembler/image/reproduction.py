"""An image made again elsewhere, from what its labels say, and compared to the byte.

The second one is made by another process in another folder, with another time zone, umask, home
and number of workers, and with an empty cache.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assembler.errors import ImageError, LockError
from assembler.image import documents
from assembler.image.compression import Codec
from assembler.image.difference import Difference, first_difference
from assembler.image.layout import Layout
from assembler.image.plan import DEFAULT_BUDGET
from assembler.image.request import FORMAT_VERSION
from assembler.image.selection import narrow
from assembler.lock.model import Lock
from assembler.progress import Progress
from assembler.stack import Profile
from assembler.workspace import Workspace

_CODEC = re.compile(r"^(zstd|gzip) level ([0-9]+)")
ELSEWHERE = {"TZ": "Pacific/Chatham", "LC_ALL": "C", "PYTHONHASHSEED": "31337"}
UMASK = 0o077


@dataclass(frozen=True)
class Recipe:
    """How an image was made, as its labels tell."""

    lock_digest: str
    gfx: tuple[str, ...]
    codec: Codec
    codec_label: str
    budget: int
    bound: str
    tag: str
    max_layer_size: str = ""

    @classmethod
    def of(cls, labels: Mapping[str, str], tag: str) -> Recipe:
        """Read the labels; ImageError when they are not this assembler's."""
        compression = _CODEC.match(labels.get(documents.COMPRESSION, ""))
        version = labels.get(documents.FORMAT, "")
        if documents.BASE_DIGEST in labels:
            raise ImageError(
                "the image stands on a base image, which its lock does not name",
                remedy="assemble it again with the same --base and compare the digests",
            )
        if not compression or documents.LOCK not in labels:
            raise ImageError(
                "the image's labels do not say how it was made",
                remedy="give one that `assembler image` made",
            )
        if version != str(FORMAT_VERSION):
            raise ImageError(
                f"the image has format version {version}, this assembler makes {FORMAT_VERSION}",
                remedy="use the assembler release that made it",
            )
        return cls(
            lock_digest=labels[documents.LOCK].removeprefix("sha256:"),
            gfx=tuple(filter(None, labels.get(documents.GFX, "").split(","))),
            codec=Codec.of(compression[1], int(compression[2])),
            codec_label=labels[documents.COMPRESSION],
            budget=int(labels.get(documents.MAX_LAYERS, DEFAULT_BUDGET)),
            bound=labels.get(documents.BOUND, ""),
            tag=tag,
            max_layer_size=labels.get(documents.MAX_LAYER_SIZE, ""),
        )


@dataclass(frozen=True)
class Reproduction:
    """A second making: both digests, and where they differ first (None: identical)."""

    digest: str
    again: str
    difference: Difference | None


def find_entry(layout: Layout, tag: str | None) -> dict[str, Any]:
    """Return the index entry of an image; ImageError when the tag does not say which."""
    images = [entry for entry in layout.entries() if "platform" in entry]
    tags = {entry.get("annotations", {}).get(documents.REF_NAME, ""): entry for entry in images}
    if tag is not None and tag in tags:
        return tags[tag]
    if tag is None and len(images) == 1:
        return images[0]
    raise ImageError(
        f"{layout.path} has {'no image ' + repr(tag) if tag else f'{len(images)} images'}",
        remedy=f"choose one with --tag: {', '.join(sorted(tags))}" if tags else "make one first",
    )


def needed_gfx(recipe: Recipe, lock: Lock, channel: Path, profile: Profile) -> tuple[str, ...]:
    """Return the targets that narrow a lock to the image's; LockError when none do."""
    if lock.digest == recipe.lock_digest:
        return ()
    if len(recipe.gfx) == 1 and lock.gfx_targets != recipe.gfx:
        narrowed = narrow(lock, channel, profile, recipe.gfx[0])
        if narrowed.digest == recipe.lock_digest:
            return recipe.gfx
    raise LockError(
        f"the image was made from the lock {recipe.lock_digest[:12]}, not from {lock.digest[:12]}",
        remedy="name its lock with --lock",
    )


def reproduce(
    workspace: Workspace,
    profile: Profile,
    layout: Layout,
    entry: Mapping[str, Any],
    lock: Path,
    gfx: tuple[str, ...],
    recipe: Recipe,
    scratch: Path,
    progress: Progress,
) -> Reproduction:
    """Make an image again below ``scratch`` and compare it with the one in ``layout``."""
    home = scratch / "home"
    home.mkdir(parents=True)
    command = [
        sys.executable, "-m", "assembler", "image", "--quiet",
        "--project", str(workspace.root), *workspace.stack().options(profile),
        "--channel", str(workspace.channel), "--lock", str(lock.absolute()),
        "--compression", recipe.codec.name, "--level", str(recipe.codec.level),
        "--max-layers", str(recipe.budget), "--tag", recipe.tag,
        "--output", str(scratch / "image"), "--cache", str(scratch / "cache"), "--jobs", "1",
    ]  # fmt: skip
    if recipe.max_layer_size:
        command += ["--max-layer-size", recipe.max_layer_size]
    for target in gfx:
        command += ["--gfx", target]
    environment = {
        **os.environ, **ELSEWHERE, "HOME": str(home), "SOURCE_DATE_EPOCH": recipe.bound,
        "ASSEMBLER_STORE": str(workspace.store),
    }  # fmt: skip
    with progress.task("making the image again"):
        done = subprocess.run(
            command, env=environment, cwd=home, umask=UMASK, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise ImageError(
            f"the image could not be made again ({(words or ['no message'])[-1]})",
            remedy="see the message; `assembler image` with the same lock shows more",
        )
    again = Layout(scratch / "image")
    second = find_entry(again, None)
    with progress.task("comparing"):
        difference = first_difference(layout, entry["digest"], again, second["digest"])
    return Reproduction(entry["digest"], second["digest"], difference)
