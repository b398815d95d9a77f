"""A stack of data-only packages in the real one's shape, for tests of channel, lock and install."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from assembler.channel.index import publish
from assembler.sources.pins import Pin
from assembler.workspace import Workspace
from tests.tiny_packages import make_package

STACK = """\
default_profile = "data"

[profile.data]
summary = "data only"
python = "3.11"
variants = []
recipes = []
root = "atom"
root_without_source = "atom-stack"

[profile.data.virtual_packages]
__unix = "0"
__glibc = "2.36"

[profile.data.image]
name = "data"
user = "65532:65532"
entrypoint = ["/opt/atom/bin/x"]

[profile.data.image.base]
suite = "trixie"
glibc = "2.41"
packages = []
"""
TARGETS = ("gfx942", "gfx950")


def packages(
    folder: Path, *, build: str = "h1111111_0", targets: Iterable[str] = TARGETS
) -> list[Path]:
    """Make the packages of the stack: root, host, device packages and their selector."""
    targets = tuple(targets)
    return [
        make_package(
            folder, "atom-stack", depends=["torch 2.13.0+cpu", "atom-device"], build=build
        ),
        make_package(
            folder,
            "torch",
            "2.13.0+cpu",
            build,
            subdir="linux-64",
            depends=["__glibc >=2.28", "zlib >=1", "zlib <3"],
            constrains=["numpy <9"],
            prefixed={"bin/torch": "#!/bin/sh\nexec {prefix}/bin/real\n"},
            input_key="a" * 64,
        ),
        make_package(folder, "zlib", "2.0", build, licence="Zlib"),
        *(
            make_package(folder, f"aiter-device-{target}", build=f"{target}_{build}")
            for target in targets
        ),
        make_package(
            folder,
            "atom-device",
            build=f"all_{build.replace('_0', '_1')}",
            number=1,
            depends=[f"aiter-device-{target}" for target in targets],
        ),
        *(
            make_package(
                folder,
                "atom-device",
                build=f"{target}_{build}",
                depends=[f"aiter-device-{target}"],
            )
            for target in targets
        ),
    ]


def workspace(root: Path, *, stack: str = STACK, channel: Path | None = None) -> Workspace:
    """Return a project of the data stack with its packages published."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "stack.toml").write_text(stack, encoding="utf-8")
    made = Workspace.at(root, channel=channel)
    publish(made.channel, packages(root / "made"))
    return made


class FakeArchive:
    """A Debian archive that serves one version of anything, and counts what it is asked."""

    def __init__(self, version: str = "1", *, suite: str = "trixie") -> None:
        self.version = version
        self.suite = suite
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def pin(self, name: str) -> Pin:
        """The pin this archive gives for a package."""
        digit = f"{sum(map(ord, name + self.version)) % 16:x}"
        return Pin(
            kind="debian",
            name=name,
            version=self.version,
            file=f"{name}_{self.version}_amd64.deb",
            sha256=digit * 64,
            size=10,
            suite=self.suite,
            architecture="amd64",
        )

    def resolve(self, names: Iterable[str]) -> tuple[Pin, ...]:
        """Pins of the version served."""
        wanted = tuple(names)
        self.asked.append(("resolve", wanted))
        return tuple(map(self.pin, wanted))

    def served(self, pins: Iterable[Pin]) -> dict[Pin, bool]:
        """Whether a pin is of the version served."""
        given = tuple(pins)
        self.asked.append(("served", tuple(pin.name for pin in given)))
        return {pin: pin == self.pin(pin.name) for pin in given}
