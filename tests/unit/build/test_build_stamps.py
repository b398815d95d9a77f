from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from assembler.build.stack import channel_stamps
from tests.tiny_packages import make_package


@pytest.mark.parametrize("kind", ["cut", "text", "middle", "no component", "folder"])
def test_a_damaged_package_has_no_stamp(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "noarch"
    whole = make_package(folder, "whole", input_key="a" * 64)
    package = make_package(folder, "tiny", input_key="b" * 64)
    path = f"noarch/{package.name}"
    assert channel_stamps(tmp_path)[path]["input_key"] == "b" * 64
    data = package.read_bytes()
    package.unlink()
    if kind == "cut":
        package.write_bytes(data[: len(data) // 2])
    elif kind == "text":
        package.write_text("x")
    elif kind == "middle":
        package.write_bytes(data[:60] + bytes(len(data) - 200) + data[-140:])
    elif kind == "no component":
        with zipfile.ZipFile(package, "w") as archive:
            archive.writestr("metadata.json", "{}")
    else:
        package.mkdir()
    found = channel_stamps(tmp_path)
    assert found.get(path, {}) == {}
    assert found[f"noarch/{whole.name}"]["input_key"] == "a" * 64
