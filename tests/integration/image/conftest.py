"""What every test of the image room works with: a tiny channel and a place for its image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from image_packages import PLACEHOLDER, PYTHON, Item, make_conda, make_python

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


def fill_channel(channel: Path) -> Path:
    """Write one package of every kind into a channel."""
    make_python(channel)
    prefix = PLACEHOLDER.encode()
    make_conda(
        channel,
        "tiny",
        [
            Item("bin/tiny", b"#!" + prefix + b"/bin/python\nprint(1)\n", 0o755, prefixed="text"),
            Item("etc/empty", b""),
            Item("lib/bin.dat", b"\0" + prefix + b"/a:" + prefix + b"\0end", prefixed="binary"),
            Item("lib/first", b"shared", 0o755),
            Item("lib/second", kind="hardlink", target="lib/first", mode=0o755),
            Item("lib/third", kind="symlink", target="first"),
            Item("share/.hidden/.dot", b"dot", 0o600),
            Item("share/naïve name", b"utf-8"),
            Item("share/" + "long/" * 60 + "name", b"deep"),
            Item("share/unlisted", b"not installed", listed=False),
        ],
        depends=["python"],
    )  # fmt: skip
    make_conda(
        channel,
        "pure",
        [
            Item("site-packages/pure/__init__.py", b"def main():\n    return 0\n"),
            Item("site-packages/pure/data.txt", b"text"),
            Item("python-scripts/pure-script", b"#!/bin/sh\n", 0o755),
            Item("share/pure/readme", b"read me"),
        ],
        noarch_python=True,
        entry_points=["pure = pure:main", "pure-x = pure.cli:App.run"],
        depends=["python"],
    )
    return channel


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
