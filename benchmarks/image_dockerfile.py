"""How fast images are assembled, against a Dockerfile that installs the same wheels.

    python benchmarks/image_dockerfile.py [--profile cpu] [--rounds 1] [--uv PATH] [--json]

The opponent starts FROM an image that has python and pip already (made by the assembler, not
timed), installs every wheel of the profile with ``pip install --no-index --no-deps`` (or uv),
offline, and ends as an OCI layout with zstd layers. Ours starts with no segment cached. Needs
buildah, runc and root, and the channel, lock and wheels that `assembler clean-image` makes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from assembler.channel.index import read_records
from assembler.image.assemble import assemble
from assembler.image.layout import Layout
from assembler.lock.files import read_lock
from assembler.lock.model import LockedPackage
from assembler.progress import SilentProgress
from assembler.sources.store import Store
from assembler.workspace import Workspace

ROOT = Path(__file__).parents[1]
CONTAINERS = """[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


class Bench:
    """The folders of one run and what is timed in them."""

    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self.workspace = Workspace.at(ROOT, channel=arguments.channel)
        self.profile = self.workspace.stack().select(arguments.profile)
        self.lock = (arguments.lock or self.workspace.lock_folder(self.profile)).absolute()
        self.uv: Path | None = arguments.uv
        self.work = work
        (work / "containers.conf").write_text(CONTAINERS)
        self.storage = [
            "buildah", "--root", str(work / "root"), "--runroot", str(work / "run"),
            "--storage-driver", "overlay",
        ]  # fmt: skip

    def run(self, *command: str | Path) -> None:
        """Run a command; the benchmark ends when it fails."""
        done = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, "CONTAINERS_CONF": str(self.work / "containers.conf")},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()[-600:]}")

    def base(self) -> Path:
        """Assemble the image that the Dockerfile starts from: python and pip."""
        lock = read_lock(self.lock)
        names = {"python", "python_abi", "pip", "setuptools", "wheel"}
        packages = {
            record.name: LockedPackage.from_record(record)
            for record in read_records(self.workspace.channel)
            if record.name in names
        }
        result = assemble(
            replace(lock, packages=tuple(packages.values()), specs=("python", "pip")),
            self.workspace.channel,
            # Root, because pip writes to the prefix.
            self.profile.image,
            self.work / "base",
            Store(self.workspace.store),
            self.work / "base-cache",
            SilentProgress(),
        )
        return result.layout

    def context(self) -> Path:
        """Lay out the build context: every wheel of the profile, and the Dockerfiles."""
        folder = self.work / "context"
        (folder / "wheels").mkdir(parents=True)
        sources = self.workspace.sources(self.profile)
        for wheel in sorted(sources.glob("*/*.whl")):
            os.link(wheel.resolve(), folder / "wheels" / wheel.name)
        if self.uv:
            shutil.copy2(self.uv, folder / "wheels" / "uv")
        wheels = [f"/wheels/{path.name}" for path in sorted((folder / "wheels").glob("*.whl"))]
        python = f"{self.profile.image.prefix}/bin/python"
        install = ["--no-index", "--no-deps", *wheels]
        ways = {
            "pip": [python, "-m", "pip", "install", "--no-cache-dir",
                    "--disable-pip-version-check", *install],
            "uv": ["/wheels/uv", "pip", "install", "--no-cache", "--system",
                   "--break-system-packages", "--python", python, *install],
        }  # fmt: skip
        for name, command in ways.items():
            (folder / f"Dockerfile.{name}").write_text(
                f"FROM oci:{self.work / 'base'}:latest\nUSER 0:0\n"
                "RUN --mount=type=bind,source=wheels,target=/wheels "
                f"{json.dumps(command)}\nUSER {self.profile.image.user}\n"
            )
        return folder

    def build(self, way: str, context: Path) -> float:
        """Build one of the Dockerfiles into an OCI layout with zstd layers; return the seconds."""
        shutil.rmtree(self.work / way, ignore_errors=True)
        started = time.monotonic()
        self.run(
            *self.storage, "bud", "--isolation", "oci", "--runtime", "runc", "--network", "none",
            "--no-cache", "--layers=false", "-q", "-t", f"{way}:latest",
            "-f", context / f"Dockerfile.{way}", context,
        )  # fmt: skip
        self.run(
            *self.storage, "push", "-q", "--format", "oci", "--compression-format", "zstd",
            f"localhost/{way}:latest", f"oci:{self.work / way}:latest",
        )  # fmt: skip
        return time.monotonic() - started

    def assemble(self) -> float:
        """Assemble the profile's image with no segment cached; return the seconds."""
        shutil.rmtree(self.work / "ours", ignore_errors=True)
        shutil.rmtree(self.work / "cache", ignore_errors=True)
        started = time.monotonic()
        self.run(
            sys.executable, "-m", "assembler", "image", "-q", "--profile", self.profile.name,
            "--channel", self.workspace.channel, "--lock", self.lock,
            "-o", self.work / "ours", "--cache", self.work / "cache",
        )  # fmt: skip
        return time.monotonic() - started

    def size(self, name: str) -> int:
        """Return the bytes of a layout's blobs."""
        return sum(path.stat().st_size for path in Layout(self.work / name).blobs.iterdir())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--channel", type=Path)
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--uv", type=Path, help="a uv program; without it only pip is measured")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for program in ("buildah", "runc"):
        if not shutil.which(program):
            sys.exit(f"{program} is not installed")
    # A short path: buildah takes no run root over 50 characters.
    with tempfile.TemporaryDirectory(prefix="ib-", dir="/tmp") as scratch:
        bench = Bench(arguments, Path(scratch))
        bench.base()
        context = bench.context()
        ways = ["pip", *(["uv"] if arguments.uv else [])]
        times: dict[str, list[float]] = {name: [] for name in ["ours", *ways]}
        for _ in range(arguments.rounds):
            times["ours"].append(bench.assemble())
            for way in ways:
                times[way].append(bench.build(way, context))
        figures: dict[str, object] = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
        for name, found in times.items():
            figures[f"{name}_seconds"] = statistics.median(found)
            figures[f"{name}_bytes"] = bench.size(name)
        for way in ways:
            ratios = [two / one for one, two in zip(times["ours"], times[way], strict=True)]
            figures[f"times_faster_than_{way}"] = statistics.median(ratios)
            figures[f"size_of_{way}s"] = bench.size("ours") / bench.size(way)
        subprocess.run(
            [*bench.storage, "rmi", "--all", "--force"], capture_output=True, check=False
        )
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        shown = f"{value:.2f}" if isinstance(value, float) else value
        print(f"{name.replace('_', ' '):<28} {shown}")


if __name__ == "__main__":
    main()
