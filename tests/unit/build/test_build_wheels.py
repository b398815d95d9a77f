from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from assembler.build.wheels import WheelMetadata, console_scripts, oldest_glibc, wheel_recipe
from assembler.errors import BuildError


def wheel(
    folder: Path,
    file: str = "some_thing-1.2-py3-none-any.whl",
    *,
    pure: bool = True,
    headers: str = "",
    entry_points: str | None = None,
) -> Path:
    path = folder / file
    info = "some_thing-1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.4\nName: some-thing\nVersion: 1.2\nSummary: Things\n{headers}\n",
        )
        archive.writestr(f"{info}/WHEEL", f"Root-Is-Purelib: {str(pure).lower()}\n")
        if entry_points is not None:
            archive.writestr(f"{info}/entry_points.txt", entry_points)
    return path


def recipe_of(path: Path) -> dict:  # type: ignore[type-arg]
    return wheel_recipe(WheelMetadata.read(path), "some-thing", "3.11", "../src", "../wheel.py")


def test_a_pure_wheel_becomes_a_noarch_python_package(tmp_path: Path) -> None:
    path = wheel(
        tmp_path,
        headers="Requires-Python: >=3.9\nRequires-Dist: numpy>=2\nRequires-Dist: x; extra == 'y'\n",
        entry_points="[console_scripts]\nthing = some_thing.cli:main [extra]\n[other]\na = b\n",
    )
    recipe = recipe_of(path)
    assert recipe["build"]["noarch"] == "python"
    assert recipe["build"]["python"]["entry_points"] == ["thing = some_thing.cli:main"]
    assert recipe["requirements"]["run"] == ["numpy >=2", "python >=3.9"]
    assert "--noarch" in recipe["build"]["script"][0]


def test_a_platform_wheel_is_bound_to_python_and_glibc(tmp_path: Path) -> None:
    file = "some_thing-1.2-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
    recipe = recipe_of(wheel(tmp_path, file, pure=False))
    assert recipe["requirements"]["run"] == [
        "__glibc >=2.27",
        "python 3.11.*",
        "python_abi 3.11.* *_cp311",
    ]
    assert "noarch" not in recipe["build"]
    assert recipe["build"]["dynamic_linking"]["binary_relocation"] is False


@pytest.mark.parametrize(
    ("file", "glibc"),
    [
        ("a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_28_x86_64.whl", "2.17"),
        ("a-1-cp311-cp311-manylinux1_x86_64.whl", "2.5"),
        ("a-1-py3-none-any.whl", None),
    ],
)
def test_the_oldest_promised_glibc_counts(file: str, glibc: str | None) -> None:
    assert oldest_glibc(parse_wheel_filename(file)[3]) == glibc


def test_console_scripts_keep_their_case() -> None:
    assert console_scripts("[console_scripts]\nMyTool = pkg.Mod:Main\n") == (
        "MyTool = pkg.Mod:Main",
    )


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ("License-Expression: MIT\nLicense: other\n", "MIT"),
        ("License: BSD-3-Clause\n", "BSD-3-Clause"),
        ("Classifier: License :: OSI Approved :: MIT License\n", "MIT"),
        ("License: Apache 2.0\n", "Apache-2.0"),
        ("Classifier: License :: OSI Approved :: BSD License\n", "LicenseRef-BSD-License"),
        ("", "LicenseRef-None"),
    ],
)
def test_licenses(tmp_path: Path, headers: str, expected: str) -> None:
    assert recipe_of(wheel(tmp_path, headers=headers))["about"]["license"] == expected


def test_a_file_that_is_no_wheel_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "some_thing-1.2-py3-none-any.whl"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(BuildError, match="is not a wheel"):
        WheelMetadata.read(path)
