"""Every pin's form, for every profile and every choice that has one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from assembler.sources.entries import PLACE, table_of
from assembler.sources.pins import Pin, Unpinned
from assembler.workspace import Workspace
from tests.conftest import ROOT

RECIPES = Workspace.at(ROOT).recipes
ENTRIES = [
    (path, table, entry)
    for path in sorted(RECIPES.rglob("sources.toml"))
    for table in tomllib.loads(path.read_text(encoding="utf-8"))
    for entry in table_of(path, table)
]
IDS = [f"{path.parent.name}-{table}-{entry.get('name')}" for path, table, entry in ENTRIES]
# Published figures, by file (sources: the package indexes named in each pin's URL).
PUBLISHED = {
    "torch-2.14.1+rocm7.2-cp312-cp312-manylinux_2_28_x86_64.whl":
        "fc35e48fd83329f5d60ab925951d138edb5a6fce84323600703637fbc693541c",
    "torchvision-0.29.0+rocm7.2-cp312-cp312-manylinux_2_28_x86_64.whl":
        "1f740629f5abb29fddb66153c44438945ae22ec2a7a9b88826e020b736c90b21",
    "torchaudio-2.11.0+rocm7.2-cp312-cp312-manylinux_2_28_x86_64.whl":
        "e0316d938346cfa4ff04b91405a91ecc50bd18781023eca5763b79f0f7b9bc8c",
    "triton_rocm-3.8.0-cp312-cp312-linux_x86_64.whl":
        "6318e6faa21395632defa13c57fa84fce5c42a79c531159911f227e599422eba",
}  # fmt: skip


@pytest.mark.parametrize(("path", "table", "entry"), ENTRIES, ids=IDS)
def test_every_entry_is_a_pin_or_says_all_that_pinning_needs(
    path: Path, table: str, entry: dict[str, object]
) -> None:
    whole = {
        key: value.replace(PLACE, "gfx942") if isinstance(value, str) else value
        for key, value in entry.items()
    }
    known = entry["kind"] == "path" or entry.get("sha256")
    pin = (Pin if known else Unpinned).model_validate(whole)
    assert pin.why
    profile = Workspace.at(ROOT).stack().profile[table]
    for axis, _value in pin.when:
        assert axis in profile.choose
    if pin.index is not None:
        assert pin.index in profile.indexes
    if isinstance(pin, Unpinned):
        assert pin.version
        assert pin.kind != "git" or (pin.url and pin.commit)
        return
    if pin.kind == "git":
        assert pin.file == f"{pin.name}-{pin.commit}.tar"
    if pin.file.endswith(".whl"):
        name, version, _build, tags = parse_wheel_filename(pin.file)
        assert name == canonicalize_name(pin.name)
        assert version == Version(pin.version)
        python = f"cp{profile.python.replace('.', '')}"
        assert {tag.interpreter for tag in tags} & {python, "py3"}


def test_published_hashes_stand_in_the_recipes() -> None:
    pinned = {entry.get("file"): entry.get("sha256") for _path, _table, entry in ENTRIES}
    assert {file: pinned.get(file) for file in PUBLISHED} == PUBLISHED


@pytest.mark.parametrize("name", ["torch", "triton-rocm"])
def test_the_fat_wheels_have_a_second_place(name: str) -> None:
    [entry] = [
        one for _p, table, one in ENTRIES
        if table == "rocm" and one["name"] == name and one.get("sha256")
    ]  # fmt: skip
    assert re.match(r"https://download\.pytorch\.org/whl/", entry["url"])


def test_placeholders_of_other_projects_are_never_taken_from_the_users_index() -> None:
    """PyPI's rocm, rocm-sdk-*, amd-torch-device-* and triton-kernels are not AMD's."""
    for _path, _table, entry in ENTRIES:
        name = str(entry["name"])
        if re.match(r"rocm|amd-torch|amd-torchvision-device", name):
            assert entry.get("index") == "amd" or entry["kind"] == "url", name
        if name == "triton-kernels":
            assert entry["kind"] == "git"


def test_submodules_are_named_and_never_all_of_them() -> None:
    named = {
        str(entry["name"]): entry["submodules"]
        for _path, _table, entry in ENTRIES
        if entry.get("submodules")
    }
    assert named["amd-mori"] == ["3rdparty/spdlog", "3rdparty/msgpack-c"]
    assert named["amd-aiter"] == ["3rdparty/composable_kernel"]
