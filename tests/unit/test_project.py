"""The project's own files: tasks, lint, types, and what must never be in the tree."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from assembler.cli.main import COMMANDS, cli
from assembler.stack import read_stack
from assembler.targets import KNOWN, build_environment, check_targets
from tests.conftest import ROOT


def tracked() -> list[Path]:
    """Return the files of the checkout, without what builds leave in it."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [file for file in files if file.is_file()]


def test_pixi_toml_follows_pixis_schema() -> None:
    schema = resources.files("validate_pyproject_schema_store.resources") / "pixi.schema.json"
    manifest = tomllib.loads((ROOT / "pixi.toml").read_text())
    jsonschema.validate(manifest, json.loads(schema.read_text()))


def test_every_pixi_task_is_a_plain_command_that_exists() -> None:
    tasks = tomllib.loads((ROOT / "pixi.toml").read_text())["tasks"]
    assert {"build-channel", "lock", "clean-image", "verify", "test", "lint", "bench"} <= set(tasks)
    for task in tasks.values():
        words = task["cmd"].split()
        assert not set(task["cmd"]) & set("|&;$<>"), task
        if words[0] == "assembler":
            assert words[1] in COMMANDS


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
    ],
    ids=" ".join,
)
def test_lint_and_types(command: list[str]) -> None:
    if shutil.which(command[0], path=str(Path(sys.executable).parent)) is None:
        pytest.skip(f"{command[0]} is not installed (pip install -e .[dev])")
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def forbidden() -> re.Pattern[str]:
    """Return what no line may hold; written in parts, so that this file holds none of it."""
    hosts = [
        ".".join(parts)
        for parts in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("deb", "debian", "org"),
            ("security", "debian", "org"),
            ("registry", "npmjs", "org"),
        )
    ]
    # A folder that checkouts lie in; the same word inside a longer path is somebody else's.
    checkout = "/".join(("", "work", ""))
    pyenv = "/".join(("", "root", ".pyenv"))
    words = "|".join(re.escape(word) for word in [*hosts, pyenv])
    return re.compile(rf"{words}|(?<![\w.}}$~-]){re.escape(checkout)}")


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        (("see https://pypi", ".org/simple"), True),
        (("python = /root", "/.pyenv/shims"), True),
        (("cd /work", "/main"), True),
        (('"file:///work', '/main/channel"'), True),
        (("build/work", "/x and $ROOT/work", "/y"), False),
        (("WORKDIR /work", "space/x"), False),
    ],
)
def test_forbidden_words_are_seen(parts: tuple[str, ...], found: bool) -> None:
    assert bool(forbidden().search("".join(parts))) is found


def test_no_host_of_a_package_registry_and_no_machine_path_is_in_the_tree() -> None:
    pattern = forbidden()
    faults = []
    for file in tracked():
        text = file.read_bytes()
        if b"\0" in text[:4096]:
            continue
        for number, line in enumerate(text.decode(errors="replace").splitlines(), 1):
            if pattern.search(line):
                faults.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not faults, "\n".join(faults)


def test_rooms_import_only_what_stands_left_of_them() -> None:
    order = ["sources", "build", "channel", "lock", "image", "verify", "report", "cli"]
    # build publishes into the channel it builds against, so the channel stands left of it in code.
    # Packages of the ground floor stand left of every room.
    rank = {name: position for position, name in enumerate(order)}
    rank |= {"channel": 0.5, "bytecode": -0.5}
    wrong = []
    for file in sorted((ROOT / "assembler").rglob("*.py")):
        parts = file.relative_to(ROOT / "assembler").parts
        if len(parts) < 2:
            continue
        imports = re.findall(r"^\s*(?:from|import) assembler\.(\w+)", file.read_text(), re.M)
        wrong += [
            f"{'/'.join(parts)} imports {name}"
            for name in imports
            if rank.get(name, -1) > rank.get(parts[0], 99)
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_and_loads(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage" in result.output


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli, ["no-such-command"])
    assert result.exit_code == 2


def test_stack_toml_is_valid() -> None:
    stack = read_stack(ROOT / "stack.toml")
    assert stack.default_profile in stack.profile


def test_generated_reference_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_dialects_spell_one_list_of_targets() -> None:
    environment = build_environment(["gfx942", "gfx950"])
    assert environment["PYTORCH_ROCM_ARCH"] == "gfx942;gfx950"
    assert environment["HCC_AMDGPU_TARGET"] == "gfx942,gfx950"
    assert "FLYDSL_GPU_ARCH" not in environment
    assert build_environment(["gfx950"])["FLYDSL_GPU_ARCH"] == "gfx950"
    assert len(check_targets(KNOWN)) == len(KNOWN)
