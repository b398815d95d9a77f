"""docker/Dockerfile.channel run for real: the tiny stack, in containers made on the spot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from assembler.build.builder import Builder
from assembler.channel.index import check, read_records
from assembler.progress import SilentProgress
from assembler.sources.fetch import fetch
from assembler.workspace import Workspace
from tests.conftest import TINY
from tests.container_builder import ContainerBuilder, tiny_context

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_the_channel_of_a_container_is_the_machines_own(
    container_builder: ContainerBuilder, tmp_path: Path
) -> None:
    targets = ("gfx942", "gfx1201")
    container_builder.build(
        "Dockerfile.channel",
        tiny_context(tmp_path / "context"),
        f"type=local,dest={tmp_path / 'channel'}",
        "--build-arg", "PROFILE=tiny",
        "--build-arg", f"GFX_TARGETS={' '.join(targets)}",
        "--build-arg", "BUDGET=--cpus 2 --memory 4",
    )  # fmt: skip

    inside = Workspace.at(tmp_path, channel=tmp_path / "channel")
    assert check(inside.channel) == ()
    names = {record.name for record in read_records(inside.channel)}
    assert {f"tiny-device-{target}" for target in targets} <= names
    assert "tiny-device-gfx950" not in names

    here = tmp_path / "here"
    shutil.copytree(TINY, here)
    (here / "recipes" / "variants.yaml").write_text(json.dumps({"gfx_target": targets}))
    workspace = Workspace.at(here)
    profile = workspace.stack().select("tiny")
    fetch(workspace, profile, SilentProgress())
    Builder(workspace, profile, SilentProgress(), jobs=2).run()
    assert {
        (record.path, record.sha256) for record in read_records(inside.channel)
    } == {(record.path, record.sha256) for record in read_records(workspace.channel)}  # fmt: skip
