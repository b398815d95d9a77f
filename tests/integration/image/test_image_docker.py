"""Docker takes what is written: a daemon of its own, with each store that it has.

ASSEMBLER_TEST_DOCKER_HOST names a daemon that runs already (unix:///…/docker.sock): the tests then
use that one, with the store that it was given. Nothing but their own images is touched in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from image_packages import lock_of, need
from image_runs import GREETING, LIMITS, archive, run

from assembler.errors import ImageError
from assembler.image.assemble import assemble_all
from assembler.image.compression import Codec
from assembler.image.engine import FIRST_WITH_ZSTD, find_engine, load
from assembler.image.layout import Layout
from assembler.image.registry import Pusher, Reference
from assembler.image.request import Options, Request
from assembler.progress import SilentProgress
from assembler.sources.store import Store

pytestmark = [pytest.mark.engine, pytest.mark.slow]
HOST = "ASSEMBLER_TEST_DOCKER_HOST"
STORES = {"classic": {}, "containerd": {"features": {"containerd-snapshotter": True}}}
FIRST_WITH_STORES = 24  # docker's major version
CONFINED = ("run", "--rm", "--network", "none", "--read-only", "--cap-drop=all")


@dataclass(frozen=True)
class Docker:
    """A daemon that answers."""

    program: str
    host: str
    store: str

    def __call__(self, *arguments: str | Path) -> str:
        """Run docker and return what it says."""
        return run(self.program, "-H", self.host, *arguments)

    @property
    def version(self) -> str:
        """The daemon's version."""
        return self("version", "--format", "{{.Server.Version}}").strip()

    @property
    def codec(self) -> Codec:
        """The fastest compression that the daemon reads."""
        zstd = int(self.version.partition(".")[0]) >= FIRST_WITH_ZSTD
        return Codec("zstd", 3) if zstd else Codec("gzip", 6)


@contextlib.contextmanager
def daemon(folder: Path, store: str) -> Iterator[str]:
    """Start a daemon on a socket in the folder, which ends with the block; yield its address."""
    program = need("dockerd")
    if os.geteuid():
        pytest.skip("dockerd needs root")
    version = run(program, "--version").split("version ")[1]
    if store != "classic" and int(version.partition(".")[0]) < FIRST_WITH_STORES:
        pytest.skip(f"docker {version.split(',')[0]} has no containerd store")
    host = f"unix://{folder / 'd.sock'}"
    (folder / "daemon.json").write_text(json.dumps(STORES[store]))
    with (folder / "dockerd.log").open("w") as log:
        process = subprocess.Popen(
            [program, "--config-file", folder / "daemon.json", "--data-root", folder / "data",
             "--exec-root", folder / "exec", "--pidfile", folder / "pid", "-H", host,
             "--iptables=false", "--ip6tables=false", "--bridge=none",
             *(["--storage-driver=vfs"] if store == "classic" else []),
             *(f"--default-ulimit={limit}" for limit in LIMITS)],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 30
        while subprocess.run([need("docker"), "-H", host, "version"], capture_output=True,
                             check=False).returncode:  # fmt: skip
            if process.poll() is not None or time.monotonic() > deadline:
                lines = (folder / "dockerd.log").read_text().strip().splitlines()
                pytest.skip(f"dockerd does not start here: {(lines or ['no message'])[-1]}")
            time.sleep(0.2)
        yield host
    finally:
        process.terminate()
        process.wait(30)
        # The daemon mounts its own folder onto itself and leaves that behind.
        subprocess.run(["umount", "-R", folder / "data"], check=False, capture_output=True)


@pytest.fixture(scope="module", params=list(STORES))
def server(request, tmp_path_factory) -> Iterator[Docker]:
    """A daemon for this module's tests; skipped where it does not start."""
    program, store = need("docker"), request.param
    given = os.environ.get(HOST)
    if given:
        status = run(program, "-H", given, "info", "--format", "{{json .DriverStatus}}")
        found = "containerd" if "io.containerd.snapshotter" in status else "classic"
        if found != store:
            pytest.skip(f"the daemon that {HOST} names has the {found} store")
        yield Docker(program, given, store)
        return
    folder = tmp_path_factory.mktemp("d")
    with daemon(folder, store) as host:
        yield Docker(program, host, store)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def docker(server, monkeypatch) -> Iterator[Docker]:
    """The daemon, as the one that commands find; it holds no image of ours before and after."""
    monkeypatch.setenv("DOCKER_HOST", server.host)
    names = ("tiny:latest", "tiny:one", "tiny:two")
    yield server
    for name in names:
        subprocess.run([server.program, "rmi", "--force", name], capture_output=True, check=False)


def identity(docker: Docker, layout: Path, digest: str) -> str:
    """Return what the daemon must call the image: its config, or the whole manifest."""
    if docker.store == "containerd":
        return digest
    document = Layout(layout).document(digest)
    assert document is not None
    return document["config"]["digest"]


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_docker_loads_and_runs_the_archive(make_image, runnable, docker, name):
    codec = Codec.of(name, None)
    result = make_image(lock_of(runnable), runnable, options=Options(codec=codec))
    engine = find_engine("docker")
    assert engine.version == docker.version
    if name == "zstd" and not engine.takes_zstd:
        with pytest.raises(ImageError, match="does not read zstd layers; assemble with --compr"):
            load(Layout(result.layout), engine, SilentProgress())
        return
    assert "tiny:latest" in load(Layout(result.layout), engine, SilentProgress())
    found = docker("image", "inspect", "--format", "{{.Id}}", "tiny:latest").strip()
    assert found == identity(docker, result.layout, result.digest)
    assert docker(*CONFINED, "tiny:latest") == GREETING.decode()


def test_docker_loads_every_image_of_an_archive(image, runnable, docker, tmp_path):
    lock = lock_of(runnable)
    layout = tmp_path / "several"
    results = assemble_all(
        [Request(lock, "one"), Request(lock, "two")], runnable, image, layout,
        Store(tmp_path / "store"), tmp_path / "cache", SilentProgress(),
        options=Options(codec=docker.codec),
    )  # fmt: skip
    docker("load", "-i", archive(layout))
    for result in results:
        found = docker("image", "inspect", "--format", "{{.Id}}", f"tiny:{result.tag}").strip()
        assert found == identity(docker, layout, result.digest)
        assert docker(*CONFINED, f"tiny:{result.tag}") == GREETING.decode()


def test_docker_runs_what_it_pulls_by_digest(make_image, runnable, docker, registry):
    result = make_image(lock_of(runnable), runnable, options=Options(codec=docker.codec))
    name = f"{registry}/a/tiny"
    pusher = Pusher(Layout(result.layout), Reference.parse(name), SilentProgress())
    assert pusher.push(("1.0",)).digests == (result.digest,)
    assert pusher.push(("1.0",)).sent_bytes == 0
    pinned = f"{name}@{result.digest}"
    assert result.digest in docker("pull", pinned)
    try:
        assert docker(*CONFINED, pinned) == GREETING.decode()
        # What docker pushes again is what it pulled: nothing is sent, and the digest stays.
        docker("tag", pinned, f"{name}:again")
        said = docker("push", f"{name}:again")
        if docker.store == "containerd":
            assert result.digest in said
        assert said.count("Layer already exists") == len(result.layers)
    finally:
        docker("rmi", "--force", pinned, f"{name}:again")
