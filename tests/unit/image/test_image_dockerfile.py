"""docker/Dockerfile.clean says what the assembler's own image of the cpu profile says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from assembler.image.activation import environment
from assembler.stack import read_stack

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docker" / "Dockerfile.clean").read_text()
INSTRUCTIONS = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n\s*", " ", TEXT).splitlines()
    if line and not line.startswith("#")
]
FINAL = INSTRUCTIONS[[words[:2] for words in INSTRUCTIONS].index(["FROM", "scratch"]) :]


def test_the_settings_are_the_profile_s():
    image = read_stack(ROOT / "stack.toml").profile["cpu"].image
    said = {name: value for name, value in FINAL if name != "ENV"}
    assert said["USER"] == image.user
    assert said["WORKDIR"] == image.workdir
    assert tuple(json.loads(said["ENTRYPOINT"])) == image.entrypoint
    (variables,) = [value for name, value in FINAL if name == "ENV"]
    found = dict(word.split("=", 1) for word in shlex.split(variables))
    assert found == environment(image.prefix, {}, image.env)


def test_only_the_assembled_root_reaches_the_image():
    copies = [value for name, value in FINAL if name in ("COPY", "ADD", "RUN")]
    assert copies == ["--from=assembled /rootfs/ /"]


def test_the_channel_is_mounted_never_copied():
    mounts = re.findall(r"--mount=type=bind,from=(\w+),target=(\S+)", TEXT)
    assert mounts == [("channel", "/channel"), ("store", "/store")]
    assert not re.search(r"COPY[^\n]*(channel|build/)", TEXT)


@pytest.mark.parametrize("name", ["Dockerfile.clean", "Dockerfile.channel"])
def test_no_frontend_is_fetched_from_a_registry(name):
    lines = (ROOT / "docker" / name).read_text().splitlines()
    assert not [line for line in lines if re.match(r"#\s*syntax\s*=", line, re.IGNORECASE)]
