"""What a node pulls again after ATOM changed: two real images, of two trees of ATOM.

In a copy of the project (recipes, store and channel by hard links, so nothing is built but ATOM)
the atom package is built from the given checkout, locked and assembled; then one line of one module
is changed and the same is done again. The two manifests are compared.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from assembler.image.documents import LAYER_NAME, LAYER_PACKAGES
from assembler.image.layout import Layout
from benchmarks.image_assembly import Subject
from benchmarks.process import ROOT, BenchmarkError, Ran, run

MODULE = Path("atom", "__init__.py")
LAYOUT = "repull-image"  # both images, one after the other, as on a machine that makes releases
COPIED = ("recipes", "stack.toml")
HASH = re.compile("[0-9a-f]{64}")
# Parts of a store that only fetching from elsewhere needs.
LEFT_OUT = ("apt", "git", "partial", "trees")


def measure(subject: Subject, atom: Path) -> dict[str, Any]:
    """Build, lock and assemble twice; return bytes and layers that the second image adds."""
    if not (atom / MODULE).is_file():
        raise BenchmarkError(f"{atom} is no checkout of ATOM (no {MODULE})")
    folder = subject.work / "repull"
    tree, project = folder / "atom", folder / "project"
    shutil.copytree(atom, tree, symlinks=True)
    _copy_project(subject, project)
    first = _image(subject, project, tree)
    held = {part["digest"] for part in _parts(subject.work / LAYOUT)}
    with (tree / MODULE).open("a") as module:
        module.write("\n# one line more\n")
    second = _image(subject, project, tree)
    wanted = _parts(subject.work / LAYOUT)
    new = [part for part in wanted if part["digest"] not in held]
    layers = [part for part in new if "annotations" in part]
    return {
        "bytes": sum(part["size"] for part in new),
        "image_bytes": sum(part["size"] for part in wanted),
        "layers": [part["annotations"].get(LAYER_NAME, "?") for part in layers],
        "packages": " ".join(
            part["annotations"].get(LAYER_PACKAGES, "") for part in layers
        ).split(),
        "layer_bytes": sum(part["size"] for part in layers),
        "first_seconds": first.seconds,
        "assembly_seconds": second.seconds,
        "package_seconds": _alone(subject, {part["digest"] for part in layers}),
    }


def _copy_project(subject: Subject, project: Path) -> None:
    project.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, project / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, project / name)
    lock = project / "locks" / subject.profile.name
    shutil.copytree(subject.lock if subject.lock.is_dir() else subject.lock.parent, lock)
    for source, place in (
        (subject.workspace.store, project / "build" / "store"),
        (subject.workspace.channel, project / "channel"),
    ):
        shutil.copytree(
            source, place, copy_function=_link, symlinks=True,
            ignore=shutil.ignore_patterns(*LEFT_OUT),
        )  # fmt: skip


def _link(source: str, place: str) -> None:
    # Finished files, which nobody writes into again, are shared with the real store and channel.
    path = Path(source)
    if path.suffix == ".conda" or HASH.fullmatch(path.name):
        try:
            os.link(source, place)
            return
        except OSError:
            pass
    shutil.copy2(source, place)


def _image(subject: Subject, project: Path, tree: Path) -> Ran:
    """Build ATOM's package from the tree, lock, and assemble; return what assembly took."""

    def assembler(*words: str | Path) -> Ran:
        # The store is the copy, whatever the caller's own is.
        return run(
            [sys.executable, "-m", "assembler", *words, "--project", project, "--quiet",
             "--profile", subject.profile.name],
            subject.clock, {"ASSEMBLER_STORE": str(project / "build" / "store")},
        )  # fmt: skip

    assembler("fetch", "--offline", "--source", f"atom={tree}")
    _demand_only_atom(project, subject)
    # Not --only: what the new package replaces leaves the channel, so the lock must follow.
    assembler("build", "--offline")
    assembler("lock")
    return assembler(
        "image", "--output", subject.work / LAYOUT, "--cache", subject.work / "cache",
        "--jobs", str(subject.threads),
    )  # fmt: skip


def _alone(subject: Subject, layers: set[str]) -> float:
    """Return what compiling, packing, compressing and hashing the new layers costs elsewhere."""
    subject.unpack(LAYOUT, "alone", layers)
    tree = subject.work / "alone"
    for path in tree.rglob("*.pyc"):
        path.unlink()
    # Some modules are templates or for other Pythons; compileall then ends with status 1.
    script = f'"{sys.executable}" -m compileall -q -j {subject.threads} "{tree}" >&2 || true'
    return run(["bash", "-c", script], subject.clock).seconds + subject.tar("alone").seconds


def _demand_only_atom(project: Path, subject: Subject) -> None:
    """Raise BenchmarkError when more than ATOM would be built, which would take the time of all."""
    command = [
        sys.executable,
        "-m",
        "assembler",
        "build",
        "--list",
        "--offline",
        "--json",
        "--quiet",
    ]
    done = subprocess.run(
        [*command, "--project", str(project), "--profile", subject.profile.name],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "ASSEMBLER_STORE": str(project / "build" / "store")},
    )  # fmt: skip
    if done.returncode:
        raise BenchmarkError((done.stderr.strip().splitlines() or ["no plan"])[-1])
    packages = json.loads(done.stdout)["packages"]
    names = [one["package"] for one in packages if one["state"] != "up to date"]
    others = [name for name in names if not re.search(r"/atom-[0-9]", name)]
    if others:
        raise BenchmarkError(f"the channel lacks {len(others)} packages, such as {others[0]}")


def _parts(path: Path) -> list[dict[str, Any]]:
    """Return manifest, config and layers of an image: what a node asks its registry for."""
    layout = Layout(path)
    (entry,) = layout.entries()
    manifest = layout.document(entry["digest"])
    assert manifest is not None
    # The entry's own annotations are its tag; only layers' count here.
    whole = {"digest": entry["digest"], "size": entry["size"]}
    return [whole, {**manifest["config"]}, *manifest["layers"]]
