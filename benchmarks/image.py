"""The image engine's whole table: what assembly takes, beside what the same bytes cost elsewhere.

Needs what `assembler clean-image --profile cpu` makes (channel, lock, sources), bash, GNU tar, zstd
and sha256sum. Further sides are measured where their programs are, and the table says what was
missing:

  buildah and runc, as root   the Dockerfile way with buildah
  docker with buildx          the Dockerfile way with BuildKit; the daemon that $DOCKER_HOST names
                              must have the containerd store
                              (daemon.json: {"features": {"containerd-snapshotter": true}})
  uv (--uv, PATH, or pip)     `uv pip install` in the Dockerfile, beside pip
  --atom CHECKOUT             bytes that a node pulls again after ATOM changed
  matplotlib                  the plot, with --write

uv and matplotlib come with `pip install --constraint constraints.txt --editable .[bench]`.
The machine should do nothing else; its load stands in the result.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from assembler.errors import AssemblerError
from assembler.workspace import Workspace
from benchmarks import image_dockerfile, image_repull, image_table, machine
from benchmarks.image_assembly import Subject, layout_size
from benchmarks.process import ROOT, BenchmarkError, Clock

FORMAT = 1
PROGRAMS = ("bash", "tar", "zstd", "sha256sum")
VERSIONS = {
    "tar": ["tar", "--version"],
    "zstd": ["zstd", "--version"],
    "buildah": ["buildah", "--version"],
    "runc": ["runc", "--version"],
    "docker": ["docker", "version", "--format", "{{.Server.Version}}"],
    "buildx": ["docker", "buildx", "version"],
}
RESULT = Path("build", "benchmarks", "image.json")


def tell(words: str) -> None:
    """Say what is being measured; the table alone goes to stdout."""
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


def measure(subject: Subject, rounds: int, uv: Path | None, atom: Path | None) -> dict[str, Any]:
    """Measure everything that can be had here, the cheapest first, and return the figures."""
    figures: dict[str, Any] = {"missing": {}}

    def attempt(name: str, action: Callable[[], dict[str, Any]]) -> None:
        tell(name)
        try:
            figures[name] = action()
        except (BenchmarkError, AssemblerError) as error:
            figures["missing"][name] = str(error)
            tell(f"{name}: not measured: {error}")

    tell("the first assembly, not timed")
    figures["first_seconds"] = subject.cold().seconds
    subject.unpack()
    attempt("assembly", lambda: _assembly(subject, rounds))
    attempt("repeated", lambda: _repeated(subject, rounds))
    figures["image_bytes"] = layout_size(subject.work / "cold")
    figures["bytecode_bytes"] = subject.bytecode()
    if atom:
        attempt("repull", lambda: image_repull.measure(subject, atom))
    else:
        figures["missing"]["repull"] = "no checkout of ATOM was given (--atom)"
    try:
        kitchen = image_dockerfile.prepare(subject, uv)
    except (BenchmarkError, AssemblerError) as error:
        figures["missing"] |= {kind.name: str(error) for kind in image_dockerfile.BUILDERS}
        return figures
    if not uv:
        figures["missing"]["uv"] = "uv is not installed (--uv)"
    for kind in image_dockerfile.BUILDERS:
        attempt(kind.name, lambda kind=kind: _dockerfile(subject, kitchen, kind, figures))  # type: ignore[misc]
    return figures


def _assembly(subject: Subject, rounds: int) -> dict[str, Any]:
    ours, packed = [], []
    for _ in range(rounds):
        ours.append(subject.cold())
        packed.append(subject.tar())
    return {
        "seconds": [ran.seconds for ran in ours],
        "peak_bytes": max(ran.peak for ran in ours),
        "tar_seconds": [ran.seconds for ran in packed],
        "tar_bytes": (subject.work / "tree.tar.zst").stat().st_size,
    }


def _repeated(subject: Subject, rounds: int) -> dict[str, Any]:
    changed = []
    for _ in range(rounds):
        package, size = subject.change_one()
        changed.append(subject.assemble("cold").seconds)
    return {
        "changed_seconds": changed,
        "changed_package": package,
        "changed_bytes": size,
        "nothing_seconds": [subject.assemble("cold").seconds for _ in range(rounds)],
        "rewritten_files": subject.rewritten(),
    }


def _dockerfile(
    subject: Subject,
    kitchen: image_dockerfile.Kitchen,
    kind: type[image_dockerfile.BuildKit] | type[image_dockerfile.Buildah],
    figures: dict[str, Any],
) -> dict[str, Any]:
    """Build each way, next to a cold assembly of ours; a way that fails does not undo another."""
    ways: dict[str, Any] = {}
    expected = 60.0
    with image_dockerfile.opened(kind, kitchen) as builder:
        for way in kitchen.ways:
            tell(f"{kind.name}, {way}")
            layout = subject.work / f"{kind.name}-{way}"
            try:
                subject.clock.demand(expected)
                theirs = builder.build(way, layout)
                expected = 2 * theirs
                size = layout_size(layout)
                shutil.rmtree(layout)
                ways[way] = {"seconds": theirs, "bytes": size, "ours": subject.cold().seconds}
            except BenchmarkError as error:
                figures["missing"][f"{kind.name}-{way}"] = str(error)
                tell(f"not measured: {error}")
    return ways


def result(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure in a folder of this run and return the whole result."""
    workspace = Workspace.at(ROOT, channel=arguments.channel)
    profile = workspace.stack().select(arguments.profile)
    lock = (arguments.lock or workspace.lock_folder(profile)).absolute()
    uv = arguments.uv or _uv()
    before = machine.load()
    clock = Clock.of(arguments.budget)
    with tempfile.TemporaryDirectory(prefix="image-bench-", dir=arguments.work) as scratch:
        subject = Subject(workspace, profile, lock, Path(scratch).resolve(), clock)
        figures = measure(
            subject, arguments.rounds, uv, arguments.atom.absolute() if arguments.atom else None
        )
    return {
        "format": FORMAT,
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "profile": profile.name,
        "rounds": arguments.rounds,
        "machine": machine.facts(),
        "load": {"before": before, "after": machine.load()},
        "versions": machine.versions(VERSIONS | ({"uv": [str(uv), "--version"]} if uv else {})),
        "seconds": round(clock.budget - clock.left, 1),
        "figures": rounded(figures),
    }


def rounded(value: Any) -> Any:
    """Return figures with seconds to the millisecond."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def _uv() -> Path | None:
    """Return uv beside this interpreter, or on PATH."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    return Path(found) if found else None


def options(words: list[str]) -> argparse.Namespace:
    """Read the command's words."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks image", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--profile", default="cpu", help="[cpu]")
    parser.add_argument("--channel", type=Path, help="[./channel]")
    parser.add_argument("--lock", type=Path, help="[locks/PROFILE]")
    parser.add_argument("--rounds", type=int, default=3, help="of what takes seconds [3]")
    parser.add_argument("--budget", type=float, default=12, help="minutes for all [12]")
    parser.add_argument("--uv", type=Path, help="a uv program [beside this Python, else on PATH]")
    parser.add_argument("--atom", type=Path, metavar="CHECKOUT", help="a checkout of ATOM")
    parser.add_argument("--work", type=Path, help="an existing folder for the run's own [TMPDIR]")
    parser.add_argument("--output", type=Path, help=f"where the JSON goes [{RESULT}]")
    parser.add_argument("--from", dest="given", type=Path, metavar="JSON",
                        help="measure nothing: show this result")  # fmt: skip
    parser.add_argument("--write", action="store_true",
                        help=f"write table, plot and JSON into {image_table.FOLDER}")  # fmt: skip
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Measure, print the table, keep the result; 1 when the stack is not there."""
    arguments = options(words)
    if arguments.write and find_spec("matplotlib") is None:
        print("--write draws with matplotlib: pip install -c constraints.txt -e .[bench]",
              file=sys.stderr)  # fmt: skip
        return 1
    if arguments.given:
        found = json.loads(arguments.given.read_text())
    else:
        if lacking := [name for name in PROGRAMS if shutil.which(name) is None]:
            print(f"not installed: {', '.join(lacking)}", file=sys.stderr)
            return 1
        try:
            found = result(arguments)
        except (BenchmarkError, AssemblerError) as error:
            print(f"{error}\nmake the stack first: ./run assembler clean-image --profile cpu",
                  file=sys.stderr)  # fmt: skip
            return 1
        place = arguments.output or ROOT / RESULT
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(found, indent=2) + "\n")
        tell(f"the result is in {place}")
    print(image_table.text(found))
    if arguments.write:
        image_table.write(found)
    return 0
