"""What every test of the image room works with: a tiny channel and a place for its image."""

from __future__ import annotations

import platform
import socket as sockets
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from image_packages import PYTHON, Item, fill_channel, make_conda, need
from image_runs import greeter

from assembler import stack
from assembler.image.assemble import assemble
from assembler.image.request import ImageResult, Options
from assembler.lock.model import Lock
from assembler.progress import SilentProgress
from assembler.sources.store import Store


@pytest.fixture
def image() -> stack.Image:
    """An image's settings, without a base."""
    return stack.Image(
        name="tiny",
        prefix="/opt/atom",
        user="65532:65532",
        entrypoint=("/opt/atom/bin/tiny",),
        workdir="/home/nonroot",
        env={"LANG": "C.UTF-8"},
        base=stack.Base(suite="trixie", glibc="2.41", packages=()),
    )


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    """A channel with one package of every kind."""
    return fill_channel(tmp_path / "channel")


@pytest.fixture
def site() -> str:
    """The image's site-packages, relative to the prefix."""
    return f"lib/python{PYTHON}/site-packages"


Assemble = Callable[..., ImageResult]


@pytest.fixture
def make_image(tmp_path: Path, image: stack.Image) -> Assemble:
    """Assemble a lock; every argument has a default below tmp_path."""

    def make(
        lock: Lock,
        channel: Path,
        layout: Path | None = None,
        *,
        cache: Path | None = None,
        store: Path | None = None,
        settings: stack.Image | None = None,
        options: Options | None = None,
        tag: str = "latest",
    ) -> ImageResult:
        return assemble(
            lock,
            channel,
            settings or image,
            layout or tmp_path / "image",
            Store(store or tmp_path / "store"),
            cache or tmp_path / "cache",
            SilentProgress(),
            options=options,
            tag=tag,
        )

    return make


@pytest.fixture
def registry(tmp_path):
    """A registry on the loopback, ended with the test; the fixture is its host and port."""
    program = need("docker-registry")
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "registry.yml").write_text(
        "version: 0.1\nlog: {level: error}\n"
        f"storage: {{filesystem: {{rootdirectory: {tmp_path / 'registry'}}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\n"
    )
    with (tmp_path / "registry.log").open("w") as log:
        process = subprocess.Popen(
            [program, "serve", tmp_path / "registry.yml"], stdout=log, stderr=log
        )
    try:
        for _ in range(100):
            with sockets.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def runnable(channel):
    """A channel whose entry point runs in an image without a C library."""
    if platform.machine() != "x86_64":
        pytest.skip("the test program is for x86-64")
    for path in channel.glob("*/tiny-*"):
        path.unlink()
    make_conda(channel, "tiny", [Item("bin/tiny", greeter(), 0o755)])
    return channel
