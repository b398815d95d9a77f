"""Packages for one platform ship the bytecode of their modules, made by the channel's python."""

from __future__ import annotations

import json
import marshal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from assembler.build import compilation
from assembler.build.builder import Builder
from assembler.build.compilation import Compiler, unpack
from assembler.build.component import component
from assembler.channel.index import read_records
from assembler.digest import sha256_bytes, sha256_file
from assembler.errors import BuildError
from assembler.progress import SilentProgress
from assembler.workspace import Workspace
from tests.conftest import run_assembler

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
TAG = f"cpython-{PYTHON.replace('.', '')}"
SITE = f"lib/python{PYTHON}/site-packages"
MODULES = 300  # more than two blocks
RECIPE = """
package:
  name: {name}
  version: "{version}"
build:
  number: 0
  script:
    - '"{python}" "$RECIPE_DIR/write.py"'
  python:
    skip_pyc_compilation: ["**/*.py"]
requirements:
  run: [{run}]
about:
  license: MIT
"""
# Its interpreter is the one that runs the tests.
PYTHON_FILES = f"""
from pathlib import Path
import os
prefix = Path(os.environ["PREFIX"])
program = prefix / "bin" / "python{PYTHON}"
program.parent.mkdir()
program.write_text('#!/bin/sh\\nexec {sys.executable} "$@"\\n')
program.chmod(0o755)
library = prefix / "lib" / "python{PYTHON}"
library.mkdir(parents=True)
(library / "os_like.py").write_text("NAME = 'posix'\\n")
"""
EXTENSION_FILES = f"""
from pathlib import Path
import os
prefix = Path(os.environ["PREFIX"])
package = prefix / "{SITE}" / "ext"
package.mkdir(parents=True)
for number in range({MODULES}):
    text = f"NUMBER = {{number}}\\nNAMES = 'a', 'shared', 'm{{number % 7}}'\\n"
    text += "def where():\\n    return where.__code__.co_filename, NAMES\\n"
    (package / f"m{{number}}.py").write_text(text)
(package / "__init__.py").write_text("")
(package / "Upper.py").write_text("UPPER = 1\\n")
(package / "broken.py").write_text("this is no python\\n")
(package / "prefixed.py").write_text(f"PREFIX = '{{prefix}}'\\n")
(package / "link.py").symlink_to("Upper.py")
(prefix / "share").mkdir()
(prefix / "share" / "template.py").write_text("TEMPLATE = 1\\n")
"""


def add(workspace: Workspace, name: str, files: str, run: str = "", version: str = "1.0") -> None:
    folder = workspace.recipes / name
    folder.mkdir()
    (folder / "write.py").write_text(files)
    recipe = RECIPE.format(name=name, version=version, python=sys.executable, run=run)
    (folder / "recipe.yaml").write_text(recipe)
    stack = workspace.root / "stack.toml"
    stack.write_text(stack.read_text().replace('recipes = ["', f'recipes = ["{name}", "', 1))


@pytest.fixture
def snake(tiny: Workspace) -> Workspace:
    """The tiny stack with a python, and a package of modules for it that sorts before it."""
    add(tiny, "python", PYTHON_FILES, version=f"{PYTHON}.9")
    add(tiny, "ext", EXTENSION_FILES, run=f'"python_abi {PYTHON}.*"')
    return tiny


def build(workspace: Workspace, *, jobs: int = 2, **chosen: Any) -> set[str]:
    profile = workspace.stack().select(None)
    result = Builder(workspace, profile, SilentProgress(), jobs=jobs).run(**chosen)
    return {item.path.split("/")[1].rsplit("-", 2)[0] for item in result.built}


def package(workspace: Workspace, name: str) -> Path:
    return next(workspace.channel.glob(f"*/{name}-*.conda"))


def read(path: Path) -> tuple[list[tuple[tarfile.TarInfo, bytes]], dict[str, dict[str, Any]]]:
    """Return a package's files in their order, and its paths.json by path."""
    with zipfile.ZipFile(path) as archive:
        with component(archive, "info-") as info:
            for member in info:
                if member.name == "info/paths.json":
                    stream = info.extractfile(member)
                    assert stream is not None
                    records = {item["_path"]: item for item in json.load(stream)["paths"]}
        with component(archive, "pkg-") as files:
            found = []
            for member in files:
                content = files.extractfile(member) if member.isreg() else None
                found.append((member, content.read() if content else b""))
    return found, records


def test_modules_have_bytecode_before_all_else_and_records_of_it(snake: Workspace) -> None:
    build(snake)
    files, records = read(package(snake, "ext"))
    names = [member.name for member, _ in files]
    compiled = [name for name in names if name.endswith(".pyc")]
    assert names[: len(compiled)] == compiled
    modules = {f"m{number}" for number in range(MODULES)} | {"__init__", "Upper"}
    assert {Path(name).name.split(".")[0] for name in compiled} == modules
    for member, data in files[: len(compiled)]:
        assert (member.mode, member.uid) == (0o644, 0)
        assert records[member.name] == {
            "_path": member.name,
            "path_type": "hardlink",
            "sha256": sha256_bytes(data),
            "size_in_bytes": len(data),
        }
        assert int.from_bytes(data[4:8], "little") == 0b01  # hash-based, not checked
        source = member.name.replace("__pycache__/", "").replace(f".{TAG}.pyc", ".py")
        assert marshal.loads(data[16:]).co_filename == source
        assert str(snake.root).encode() not in data
    assert list(records) == sorted(records)
    assert f"lib/python{PYTHON}/__pycache__/os_like.{TAG}.pyc" in read(package(snake, "python"))[1]


def test_without_a_recipe_for_python_nothing_is_compiled(tiny: Workspace) -> None:
    add(tiny, "ext", EXTENSION_FILES, run=f'"python_abi {PYTHON}.*"')
    build(tiny)
    files, records = read(package(tiny, "ext"))
    assert not [name for name in records if name.endswith(".pyc")]
    assert not [member.name for member, _ in files if member.name.endswith(".pyc")]


def test_the_same_bytes_whatever_the_number_of_processes(
    snake: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build(snake, jobs=1)
    files, records = read(package(snake, "ext"))
    shipped = [(member.name, data) for member, data in files if member.name.endswith(".pyc")]
    sources = {name: item for name, item in records.items() if not name.endswith(".pyc")}
    for workers in (1, 5):
        monkeypatch.setattr(compilation, "WORKERS", workers)
        folder = tmp_path / f"with {workers}"
        unpack([package(snake, "python")], folder)
        with (
            Compiler.opened(folder) as compiler,
            zipfile.ZipFile(package(snake, "ext")) as archive,
            component(archive, "pkg-") as tar,
        ):
            made = [(item["_path"], data) for item, data in compiler.compiled(tar, sources)]
        assert made == shipped
    before = {path.name: sha256_file(path) for path in snake.channel.glob("*/*.conda")}
    for path in snake.channel.glob("*/*.conda"):
        path.unlink()
    build(snake, jobs=4)
    assert {path.name: sha256_file(path) for path in snake.channel.glob("*/*.conda")} == before


def test_shipped_bytecode_is_what_runs_and_knows_where_it_lies(
    snake: Workspace, tmp_path: Path
) -> None:
    build(snake)
    unpack([package(snake, "ext")], tmp_path)
    site = tmp_path / "prefix" / SITE
    (site / "ext" / "m5.py").write_text("raise SystemExit('the source was compiled')\n")
    program = "from ext import m5; print(m5.NUMBER, m5.where()[0])"

    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-B", *flags, "-c", program],
            env={"PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=False,
        )

    done = run()
    assert done.stdout.split() == ["5", str(site / "ext" / "m5.py")], done.stderr
    assert "the source was compiled" in run("--check-hash-based-pycs", "always").stderr


def test_a_changed_python_rebuilds_what_it_compiled(snake: Workspace) -> None:
    build(snake)
    script = snake.recipes / "python" / "write.py"
    script.write_text(script.read_text().replace("'posix'", "'nt'"))
    done = run_assembler("build", "--list", "--json", cwd=snake.root)
    rows = json.loads(done.stdout)["packages"]
    assert {row["package"].split("/")[1].split("-")[0]: row["why"] for row in rows
            if row["state"] == "build"} == {
        "python": "changed recipe: write.py", "ext": "changed python"}  # fmt: skip
    assert build(snake) == {"python", "ext"}
    assert build(snake) == set()


def test_only_wants_the_python_and_up_to_brings_it(snake: Workspace) -> None:
    with pytest.raises(BuildError, match="the python that compiles its modules is not in the"):
        build(snake, only=["ext"])
    assert not snake.channel.exists() or not read_records(snake.channel)
    assert build(snake, only=["ext", "python"]) == {"python", "ext"}
    for path in snake.channel.glob("*/ext-*.conda"):
        path.unlink()
    assert build(snake, only=["ext"]) == {"ext"}
    for path in snake.channel.glob("*/*.conda"):
        path.unlink()
    assert build(snake, up_to=["ext"]) == {"python", "ext"}


def test_a_python_that_does_not_run_is_one_sentence(snake: Workspace) -> None:
    script = snake.recipes / "python" / "write.py"
    script.write_text(script.read_text().replace(sys.executable, "/nowhere/python"))
    with pytest.raises(BuildError, match="the channel's python does not run on this machine"):
        build(snake)
