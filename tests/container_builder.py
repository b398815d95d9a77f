"""Dockerfiles built for real: podman, without network, from an image made on the spot."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT, TINY


def run(*command: str | Path, timeout: float = 600) -> str:
    """Run a program and return its output; its last words are the assertion when it fails."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{command[0]}: {done.stderr[-2000:]}"
    return done.stdout


@dataclass(frozen=True)
class ContainerBuilder:
    """podman, an image with Python and git, and the wheels that pip finds in a container."""

    program: str
    image: str
    wheels: Path

    def build(self, dockerfile: str, context: Path, output: str, *options: str) -> None:
        """Build one of the project's Dockerfiles and export what its last stage holds."""
        settings = self.wheels.with_name("pip.conf")
        settings.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
        run(
            self.program, "build", "--network=none", "--layers=false", "--force-rm",
            "--volume", f"{self.wheels}:/wheels:ro", "--secret", f"id=pip.conf,src={settings}",
            "--file", ROOT / "docker" / dockerfile, "--build-arg", f"BUILDER={self.image}",
            *options, "--output", output, context,
        )  # fmt: skip


def tiny_context(folder: Path) -> Path:
    """Lay the project with the tiny stack into a folder, as a build context."""
    shutil.copytree(TINY, folder)
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(
        ROOT / "assembler", folder / "assembler", ignore=shutil.ignore_patterns("__pycache__")
    )
    return folder
