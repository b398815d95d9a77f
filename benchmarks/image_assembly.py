"""Our side: assembly with nothing cached, with one package changed, with nothing to do; and tar."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import zstandard

from assembler.digest import chunks
from assembler.image.compression import Codec
from assembler.image.documents import LAYER_NAME, LAYER_PACKAGES
from assembler.image.layout import Layout
from assembler.image.tarstream import Pieces
from assembler.stack import Profile
from assembler.workspace import Workspace
from benchmarks.process import BenchmarkError, Clock, Ran, run

# The least that a compressed, addressable layer of the same files costs.
PIPELINE = (
    "set -o pipefail; tar cf - -C {tree} {names} | tee >(sha256sum > {out}.tar.sum) "
    "| zstd -q -3 -T{threads} | tee >(sha256sum > {out}.zst.sum) > {out}"
)


@dataclass(frozen=True)
class Subject:
    """What is assembled, and the folders of one run."""

    workspace: Workspace
    profile: Profile
    lock: Path
    work: Path
    clock: Clock

    @property
    def threads(self) -> int:
        """Threads that both sides may use."""
        return min(os.cpu_count() or 1, 4)

    def assemble(self, layout: str, cache: str = "cache", lock: Path | None = None) -> Ran:
        """Assemble into folders of this run, as the command line does."""
        return run(
            [sys.executable, "-m", "assembler", "image", "--quiet", "--profile", self.profile.name,
             "--channel", self.workspace.channel, "--lock", lock or self.lock,
             "--output", self.work / layout, "--cache", self.work / cache,
             "--jobs", str(self.threads)],
            self.clock,
        )  # fmt: skip

    def cold(self, layout: str = "cold") -> Ran:
        """Assemble with no layer and no segment; the interpreter stays unpacked."""
        shutil.rmtree(self.work / layout, ignore_errors=True)
        for name in ("segments", "layers"):
            shutil.rmtree(self.work / "cache" / name, ignore_errors=True)
        return self.assemble(layout)

    def unpack(
        self, layout: str = "cold", tree: str = "tree", only: Collection[str] | None = None
    ) -> None:
        """Write an image's layers, or those of the digests, into a folder, lowest first."""
        source = Layout(self.work / layout)
        manifest = source.document(source.entries()[0]["digest"])
        assert manifest is not None
        for layer in manifest["layers"]:
            if only is not None and layer["digest"] not in only:
                continue
            with source.blob(layer["digest"]).open("rb") as blob:
                pieces = Pieces(Codec("zstd", 3).expand(chunks(blob)))
                with tarfile.open(fileobj=pieces, mode="r|") as archive:  # type: ignore[call-overload]
                    archive.extraction_filter = lambda member, _: member
                    archive.extractall(self.work / tree)

    def bytecode(self, tree: str = "tree") -> int:
        """Return what the image's bytecode has in it, in compressed bytes."""
        size = 0
        packer = zstandard.ZstdCompressor(level=3, threads=self.threads).compressobj()
        for path in sorted((self.work / tree).rglob("*.pyc")):
            size += len(packer.compress(path.read_bytes()))
        return size + len(packer.flush())

    def tar(self, tree: str = "tree") -> Ran:
        """Pack, compress and hash a folder's files with tar, zstd and sha256sum."""
        names = " ".join(sorted(path.name for path in (self.work / tree).iterdir()))
        script = PIPELINE.format(
            tree=self.work / tree, names=names, out=self.work / f"{tree}.tar.zst",
            threads=self.threads,
        )  # fmt: skip
        return run(["bash", "-c", script], self.clock)

    def change_one(self, layout: str = "cold") -> tuple[str, int]:
        """Make the smallest package of the biggest shared layer one that was never seen.

        Its segment and its layer's blob go, so assembling again costs what a new build of that
        package costs. Returns its file name and the size of its segment.
        """
        source = Layout(self.work / layout)
        manifest = source.document(source.entries()[0]["digest"])
        assert manifest is not None
        shared = [
            layer for layer in manifest["layers"]
            if " " in layer["annotations"][LAYER_PACKAGES]
            and layer["annotations"][LAYER_NAME] != "base"
        ]  # fmt: skip
        if not shared:
            raise BenchmarkError("no layer holds more than one package")
        layer = max(shared, key=lambda layer: layer["size"])
        source.blob(layer["digest"]).unlink()
        names = layer["annotations"][LAYER_PACKAGES].split()
        segments = []
        for path in (self.work / "cache" / "segments").rglob("*.json"):
            facts = json.loads(path.read_text())
            if facts["name"].rsplit("-", 2)[0] in names:
                segments.append((facts["size"], facts["name"], path))
        size, name, path = min(segments)
        path.unlink()
        path.with_suffix(".segment").unlink()
        return str(name), int(size)

    def rewritten(self, layout: str = "cold") -> int:
        """Assemble what is there already and count files of layout and segments that changed."""
        before = self._files(layout)
        self.assemble(layout)
        after = self._files(layout)
        return sum(before.get(path) != found for path, found in after.items())

    def _files(self, layout: str) -> dict[Path, tuple[int, int]]:
        found = {}
        for root in (self.work / layout, self.work / "cache" / "segments"):
            for path in root.rglob("*"):
                if path.is_file():
                    status = path.stat()
                    found[path] = (status.st_ino, status.st_mtime_ns)
        return found


def layout_size(path: Path) -> int:
    """Return the bytes of the blobs that an image in a layout names, manifest and config too."""
    layout = Layout(path)
    digests = set(layout.reachable(layout.entries()))
    return sum(layout.blob(digest).stat().st_size for digest in digests)
