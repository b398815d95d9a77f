"""The other side: a Dockerfile that installs the same wheels, built by buildah or by BuildKit.

It starts FROM an image that has Python and pip already (made by the assembler, not timed), installs
the wheels of every locked package offline in one RUN, and ends as an OCI layout with zstd layers.
A first build that installs nothing, not timed, brings base and wheels to where the builder wants
them. All of that is in the opponent's favour.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from assembler.channel.index import read_records
from assembler.image.assemble import assemble
from assembler.lock.files import read_lock
from assembler.lock.model import LockedPackage
from assembler.progress import SilentProgress
from assembler.sources.store import Store
from benchmarks.image_assembly import Subject
from benchmarks.process import BenchmarkError, Ran, run

CONTAINERS = """[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
BASE_PACKAGES = {"python", "python_abi", "pip", "setuptools", "wheel"}


@dataclass(frozen=True)
class Kitchen:
    """What the builders get: the base image, the wheels, a Dockerfile for each way to install."""

    subject: Subject
    folder: Path
    uv: Path | None

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways to install that can be had here, the fastest first."""
        return ("uv", "pip") if self.uv else ("pip",)

    def dockerfile(self, way: str) -> Path:
        """Return the Dockerfile of a way, or of ``none``, which installs nothing."""
        return self.folder / f"Dockerfile.{way}"

    @property
    def contexts(self) -> Path:
        """The empty folder that is the main build context."""
        return self.folder / "empty"

    @property
    def base(self) -> Path:
        """The OCI layout of the base image."""
        return self.folder / "base"

    @property
    def wheels(self) -> Path:
        """The folder of wheels, and of uv."""
        return self.folder / "wheels"


def prepare(subject: Subject, uv: Path | None) -> Kitchen:
    """Make everything that is not timed."""
    kitchen = Kitchen(subject, subject.work / "kitchen", uv)
    kitchen.wheels.mkdir(parents=True)
    kitchen.contexts.mkdir()
    lock = read_lock(subject.lock)
    packages = [
        LockedPackage.from_record(record)
        for record in read_records(subject.workspace.channel)
        if record.name in BASE_PACKAGES
    ]
    newest = {package.name: package for package in packages}
    assemble(
        replace(lock, packages=tuple(newest.values()), specs=("python", "pip")),
        subject.workspace.channel, subject.profile.image, kitchen.base,
        Store(subject.workspace.store), kitchen.folder / "cache", SilentProgress(),
    )  # fmt: skip
    locked = {package.name for package in lock.packages}
    sources = subject.workspace.sources(subject.profile)
    for wheel in sorted(sources.glob("*/*.whl")):
        if wheel.parent.name in locked:
            _place(wheel.resolve(), kitchen.wheels / wheel.name)
    wheels = [f"/wheels/{path.name}" for path in sorted(kitchen.wheels.glob("*.whl"))]
    if not wheels:
        raise BenchmarkError(f"no wheels in {sources.relative_to(subject.workspace.root)}")
    if uv:
        shutil.copy2(uv, kitchen.wheels / "uv")
    python = f"{subject.profile.image.prefix}/bin/python"
    install = ["--no-index", "--no-deps", *wheels]
    commands = {
        "none": [python, "-c", ""],
        "pip": [python, "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check",
                *install],
        "uv": ["/wheels/uv", "pip", "install", "--no-cache", "--system", "--break-system-packages",
               "--python", python, *install],
    }  # fmt: skip
    for way, command in commands.items():
        kitchen.dockerfile(way).write_text(
            "FROM base\nUSER 0:0\nRUN --mount=type=bind,from=wheels,target=/wheels "
            f"{json.dumps(command)}\nUSER {subject.profile.image.user}\n"
        )
    return kitchen


def _place(file: Path, place: Path) -> None:
    try:
        os.link(file, place)
    except OSError:
        shutil.copy2(file, place)


class Buildah:
    """buildah with runc: build, then push into an OCI layout with zstd layers."""

    name = "buildah"

    def __init__(self, kitchen: Kitchen, folder: Path) -> None:
        for program in ("buildah", "runc"):
            if shutil.which(program) is None:
                raise BenchmarkError(f"{program} is not installed")
        if os.geteuid():
            raise BenchmarkError("buildah was not tried: it needs root here")
        self.kitchen = kitchen
        self.base = folder / "base"
        self.base.symlink_to(kitchen.base)
        settings = folder / "containers.conf"
        settings.write_text(CONTAINERS)
        self.env = {"CONTAINERS_CONF": str(settings)}
        self.storage = [
            "buildah", "--root", str(folder / "root"), "--runroot", str(folder / "run"),
            "--storage-driver", "overlay",
        ]  # fmt: skip

    def warm_up(self) -> None:
        """Bring the base into buildah's own storage."""
        self._build("none")

    def _build(self, way: str) -> Ran:
        kitchen = self.kitchen
        return run(
            [*self.storage, "bud", "--isolation", "oci", "--runtime", "runc", "--network", "none",
             "--no-cache", "--layers=false", "-q", "-t", f"{way}:latest",
             "--build-context", f"base=container-image://oci:{self.base}:latest",
             "--build-context", f"wheels={kitchen.wheels}",
             "-f", kitchen.dockerfile(way), kitchen.contexts],
            kitchen.subject.clock, self.env,
        )  # fmt: skip

    def build(self, way: str, layout: Path) -> float:
        """Build one of the Dockerfiles into an OCI layout; return the seconds."""
        built = self._build(way)
        pushed = run(
            [*self.storage, "push", "-q", "--format", "oci", "--compression-format", "zstd",
             f"localhost/{way}:latest", f"oci:{layout}:latest"],
            self.kitchen.subject.clock, self.env,
        )  # fmt: skip
        return built.seconds + pushed.seconds

    def close(self) -> None:
        """Give the storage back."""
        for command in (["rm", "--all"], ["rmi", "--all", "--force"]):
            subprocess.run(
                [*self.storage, *command], capture_output=True, check=False,
                env={**os.environ, **self.env},
            )  # fmt: skip


class BuildKit:
    """BuildKit through `docker buildx build`, in a daemon with the containerd store."""

    name = "BuildKit"

    def __init__(self, kitchen: Kitchen, folder: Path) -> None:
        if shutil.which("docker") is None:
            raise BenchmarkError("docker is not installed")
        if _says("docker", "buildx", "version") is None:
            raise BenchmarkError("docker has no buildx")
        status = _says("docker", "info", "--format", "{{json .DriverStatus}}")
        if status is None:
            raise BenchmarkError("no docker daemon answers ($DOCKER_HOST)")
        if "io.containerd.snapshotter" not in status:
            raise BenchmarkError("docker's daemon has no containerd store, so writes no OCI layout")
        self.kitchen = kitchen

    def warm_up(self) -> None:
        """Let BuildKit fetch base and wheels from the client."""
        self._build("none", ["--output", "type=cacheonly"])

    def _build(self, way: str, output: list[str]) -> Ran:
        kitchen = self.kitchen
        return run(
            ["docker", "buildx", "build", "--builder", "default", "--quiet", "--no-cache",
             "--network", "none", "--provenance=false", "--sbom=false",
             "--build-context", f"base=oci-layout://{kitchen.base}:latest",
             "--build-context", f"wheels={kitchen.wheels}",
             "--file", kitchen.dockerfile(way), *output, kitchen.contexts],
            kitchen.subject.clock,
        )  # fmt: skip

    def build(self, way: str, layout: Path) -> float:
        """Build one of the Dockerfiles into an OCI layout; return the seconds."""
        output = f"type=oci,dest={layout},tar=false,compression=zstd"
        return self._build(way, ["--output", output]).seconds

    def close(self) -> None:
        """Nothing was tagged; what is cached, docker clears away itself."""


def _says(*command: str) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


Builder = Buildah | BuildKit
BUILDERS: tuple[type[BuildKit] | type[Buildah], ...] = (BuildKit, Buildah)


@contextlib.contextmanager
def opened(kind: type[BuildKit] | type[Buildah], kitchen: Kitchen) -> Iterator[Builder]:
    """Start a builder in a folder of its own and end it; BenchmarkError says why there is none."""
    # Short, since buildah takes no run root over 50 characters, and of letters that may be in an
    # image's name, since it takes the base's path for one.
    with _folder(Path("/tmp") / f"ib{os.getpid()}") as folder:
        builder = kind(kitchen, folder)
        try:
            builder.warm_up()
            yield builder
        finally:
            builder.close()


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[Path]:
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
