"""Pins that pip cannot see: wheels that only their URL has, and pins of each GPU target."""

from __future__ import annotations

import pytest

from assembler.errors import ConfigError, SourceUnavailableError
from assembler.progress import SilentProgress
from assembler.sources.pinning import Pinner
from assembler.sources.pins import read_pins
from assembler.workspace import Workspace
from tests.integration.sources.conftest_sources import TinyWheel, entry, make_wheel, wheel_entry

WHEEL = make_wheel("elsewhere", "1.0")


def pinner(workspace: Workspace) -> Pinner:
    return Pinner(workspace, workspace.stack().select(None), SilentProgress())


def test_a_wheel_that_only_its_url_has_stays_as_it_is(index, pip_environment, project) -> None:
    pip_environment(index_url=index(make_wheel("other", "1.0")))
    workspace = project(one=wheel_entry(WHEEL, url="https://example.org/elsewhere.whl"))
    before = (workspace.recipes / "one" / "sources.toml").read_text()
    [change] = pinner(workspace).recipes()
    assert not change.real
    assert (workspace.recipes / "one" / "sources.toml").read_text() == before
    with pytest.raises(SourceUnavailableError, match="elsewhere"):
        pinner(workspace).recipes(["elsewhere"])  # asked for, it must be found


def test_an_index_that_the_profile_has_not_is_a_sentence(pip_environment, project) -> None:
    pip_environment()
    text = entry(kind="pypi", name="x", version="1.0", index="amd")
    with pytest.raises(ConfigError, match=r"names the index 'amd', which the profile has not"):
        pinner(project(one=text)).recipes()


def test_one_entry_gives_a_pin_for_each_target(index, pip_environment, project) -> None:
    wheels: list[TinyWheel] = [make_wheel(f"code-{t}", "1.0", text=t) for t in ("gfx942", "gfx950")]
    pip_environment(index_url=index(*wheels))
    workspace = project(one=entry(kind="pypi", name="code-{gfx}", version="1.0", why="code"))
    stack = workspace.root / "stack.toml"
    stack.write_text(stack.read_text().replace("variants = []", 'variants = ["variants.yaml"]'))
    variants = workspace.root / "variants.yaml"
    variants.write_text("gfx_target: [gfx942, gfx950]\n")
    before = (workspace.recipes / "one" / "sources.toml").read_text()
    assert len(pinner(workspace).recipes()) == 2
    assert (workspace.recipes / "one" / "sources.toml").read_text() == before
    pins = read_pins(workspace, workspace.stack().select(None))["one"]
    assert [(pin.name, pin.target, pin.sha256) for pin in pins] == [
        (wheel.name, wheel.name.partition("-")[2], wheel.sha256) for wheel in wheels
    ]
    variants.write_text("gfx_target: [gfx942, gfx950, gfx1201]\n")
    with pytest.raises(ConfigError, match=r"code-gfx1201.*unpinned"):
        read_pins(workspace, workspace.stack().select(None))
