"""``assembler verify`` and ``assembler doctor`` as users call them, on real and tiny things."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from assembler.progress import SilentProgress
from assembler.verify.gates import jit
from assembler.verify.opening import find_subjects, open_tree
from assembler.verify.policy import read_policy
from tests.elf_making import Elf, make_elf
from tests.verify_making import Item, make_conda, make_layout

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PROJECT = Path(__file__).parents[3]
STATIC = ("gfx", "kernels", "loader", "shadowing", "no-compilation", "jit", "hygiene", "size")


@pytest.fixture
def verify(assembler: Run, tmp_path: Path) -> Run:
    """The command with its scratch folder and project given."""

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return assembler(
            "verify", "-q", "--project", PROJECT, "--profile", "cpu",
            "--scratch", tmp_path / "scratch", *arguments, cwd=tmp_path,
        )  # fmt: skip

    return call


def static(*names: str) -> list[str]:
    return [word for name in names for word in ("--gate", name)]


def test_a_clean_layout_passes_and_a_bad_one_says_which_gate(verify: Run, tmp_path: Path) -> None:
    clean = make_layout(tmp_path / "clean", [{"opt/a.py": "x"}])
    bad = make_layout(tmp_path / "bad", [{"bin/su": Item(b"x", mode=0o4755)}])
    worse = make_layout(
        tmp_path / "worse", [{"bin/su": Item(b"x", mode=0o4755), "bin/git": Item(b"x", mode=0o755)}]
    )
    assert verify(clean, *static(*STATIC)).returncode == 0
    one = verify(bad, *static(*STATIC))
    assert (one.returncode, "hygiene/setuid bin/su" in one.stdout) == (27, True)
    assert verify(worse, *static(*STATIC)).returncode == 11
    both = verify(clean, bad, *static("hygiene"))
    assert both.returncode == 27
    assert str(clean) in both.stdout


def test_every_format_is_printed(verify: Run, tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "l", [{"bin/su": Item(b"x", mode=0o4755)}])
    gates = static("hygiene")
    data = json.loads(verify(layout, *gates, "--json").stdout)
    assert data["subjects"][0]["gates"][0]["findings"][0]["id"] == "hygiene/setuid"
    assert json.loads(verify(layout, *gates, "--format", "sarif").stdout)["version"] == "2.1.0"
    xml = verify(layout, *gates, "--format", "junit").stdout
    assert ET.fromstring(xml.encode()).find("testsuite/testcase/failure") is not None
    assert "| ❌ | hygiene |" in verify(layout, *gates, "--format", "markdown").stdout


def test_why_explains_a_library(verify: Run, tmp_path: Path) -> None:
    files = {
        "lib/a.so": make_elf(Elf(needed=["libb.so"], runpath="$ORIGIN/sub")),
        "lib/sub/libb.so": make_elf(Elf(soname="libb.so")),
    }
    package = make_conda(tmp_path / "tiny-1.0-0.conda", files)
    done = verify(package, "--why", "lib/a.so")
    assert done.returncode == 0
    assert "libb.so → lib/sub/libb.so (RUNPATH $ORIGIN/sub)" in done.stdout


def test_what_users_get_wrong_is_one_sentence(verify: Run, tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "l", [{"a": "x"}])
    cases = {
        (str(tmp_path / "missing"),): (3, "there is no"),
        (str(layout), "--gate", "smell"): (3, "there is no gate 'smell'"),
        (str(layout), "--policy", str(tmp_path / "none.toml")): (3, "there is no policy"),
    }
    for arguments, (code, words) in cases.items():
        done = verify(*arguments)
        assert done.returncode == code
        assert done.stderr.startswith("assembler: ")
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_an_image_that_runs_as_root_is_refused_before_it_runs(verify: Run, tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "l", [{"bin/sh": Item(b"x", mode=0o755)}], user="")
    done = verify(layout, "--gate", "smoke")
    assert done.returncode == 10
    assert "user" in done.stderr


def test_the_doctor_says_what_it_finds(assembler: Run, tmp_path: Path) -> None:
    done = assembler("doctor", "--json", "--project", PROJECT, cwd=tmp_path)
    seen = json.loads(done.stdout)
    ids = {check["id"] for check in seen["checks"]}
    assert {"system", "python", "venv", "git", "disk", "memory", "pip-index", "apt"} <= ids
    assert {"sandbox", "user-namespaces", "strace", "amd-gpu", "conda", "pixi"} <= ids
    assert done.returncode == (0 if seen["able"] else 14)
    assert all(check["remedy"] for check in seen["checks"] if check["status"] != "ok")


# -- the real thing --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def aiter_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """amd-aiter's wheel from the configured index."""
    folder = tmp_path_factory.mktemp("aiter")
    line = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--pre", "-d", str(folder)]
    line += ["--only-binary=:all:", "--disable-pip-version-check", "amd-aiter==0.1.7.post2.dev18"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        pytest.skip("amd-aiter cannot be downloaded here")
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_the_report_for_aiter_agrees_with_the_wheel_s_own_list(
    aiter_wheel: Path, tmp_path: Path
) -> None:
    (subject,) = find_subjects(aiter_wheel)
    with open_tree(subject, tmp_path, SilentProgress()) as tree:
        listed = json.loads(tree.read("aiter/jit/optCompilerConfig.json"))
        result = jit.check(tree, read_policy("cpu", targets=("gfx942", "gfx950")))
        used = {
            word
            for entry in tree.under("aiter")
            if entry.name.endswith(".py")
            for word in tree.read(entry.path).decode().replace('"', " ").split()
            if word.startswith("module_")
        }
    units = result.facts["units"]
    assert isinstance(units, list)
    modules = {unit["name"]: unit for unit in units if unit["system"] == "aiter"}
    assert len(listed) == 65
    assert set(modules) == set(listed)
    # There is no .so in this wheel, so whatever a function asks for compiles, and nothing else.
    asked = {name for name, unit in modules.items() if unit["verdict"] != "not-asked"}
    assert {name for name in listed if not name.endswith("_tune") and name in used} == asked
    assert len(asked) == 53
    assert sum(unit["system"] == "cpp_itfs" for unit in units) == 8
