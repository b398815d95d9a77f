"""The real cpu stack, where `assembler clean-image --profile cpu` has made it."""

from __future__ import annotations

import json
import os
import subprocess
import warnings
from pathlib import Path

import pytest

from assembler.build.normal import read_stamp
from assembler.channel.index import read_records
from assembler.lock.check import check_lock
from assembler.lock.files import read_lock
from assembler.stack import Profile
from assembler.verify.gfx import CodeObject, inventory
from assembler.workspace import Workspace
from tests.conftest import ROOT, run_assembler

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("real_store")]

HERE = Workspace.at(ROOT)


@pytest.fixture(scope="module")
def profile() -> Profile:
    found = HERE.stack().select("cpu")
    if not HERE.image_layout(found).is_dir():
        pytest.skip("the real image is not there: ./run assembler clean-image --profile cpu")
    return found


def test_a_second_run_has_nothing_to_do(profile: Profile) -> None:
    done = run_assembler("clean-image", "--profile", "cpu", "-q", "--json", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["up_to_date"]


def test_the_lock_is_fresh_and_names_what_was_built(profile: Profile) -> None:
    check = check_lock(HERE, profile)
    assert not check.reasons, [str(reason) for reason in check.reasons]
    built = {record.path: record.sha256 for record in read_records(HERE.channel)}
    lock = read_lock(HERE.lock_file(profile))
    assert {package.path: package.sha256 for package in lock.packages}.items() <= built.items()


def test_a_fresh_build_gives_the_committed_hashes(profile: Profile, tmp_path: Path) -> None:
    """Packages made of Debian packages that the mirror has replaced are told, not compared.

    With python these are all whose modules it compiles.
    """

    def git(*arguments: str) -> bytes:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no git here: {done.stderr.decode().strip()[:100]}")
        return done.stdout

    committed = tmp_path / "conda-lock.yml"
    committed.write_bytes(git("show", "HEAD:locks/cpu/conda-lock.yml"))
    moved = {
        Path(name).parent.name
        for name in git("diff", "--name-only", "HEAD", "--", "recipes").decode().split()
        if name.endswith("/sources.toml")
    }
    records = read_records(HERE.channel)
    if "python" in moved:
        stamps = {record.name: read_stamp(HERE.channel / record.path) for record in records}
        moved |= {name for name, stamp in stamps.items() if stamp.get("inputs", {}).get("python")}
    built = {record.path: record.sha256 for record in records}
    differing = {
        package.name
        for package in read_lock(committed).packages
        if built.get(package.path) != package.sha256
    }
    if moved:
        warnings.warn(f"re-pinned, so not compared: {', '.join(sorted(moved))}", stacklevel=1)
    assert differing <= moved


def test_device_packages_hold_their_own_targets_code_and_all_of_it(profile: Profile) -> None:
    counts: dict[str, int] = {}
    for record in read_records(HERE.channel):
        if not record.name.startswith("amd-aiter"):
            continue
        found = [
            item for item in inventory(HERE.channel / record.path) if isinstance(item, CodeObject)
        ]
        counts[record.name] = len(found)
        if "-device-" in record.name:
            target = record.name.rpartition("-")[2]
            assert {item.processor for item in found} == {target}
    # What the wheel holds, counted with readelf: 2,613 code objects.
    assert counts.pop("amd-aiter") == counts.pop("amd-aiter-sources") == 0
    assert sum(counts.values()) == 2613


@pytest.mark.slow
@pytest.mark.parametrize("length", [20, 200])
def test_an_environment_at_a_short_and_a_long_prefix(
    profile: Profile, length: int, tmp_path: Path
) -> None:
    prefix = tmp_path / "e"
    prefix = prefix.with_name("e" * max(1, length - len(str(tmp_path)) - 1))
    done = run_assembler("install", "--profile", "cpu", "-q", "-p", prefix, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    python = prefix / "bin" / "python"
    code = (
        "import sys, ssl, sqlite3, ctypes, lzma, bz2, zlib, readline, curses, uuid\n"
        "import torch, triton, flydsl, flydsl.compiler, transformers, pandas\n"
        "assert sys.prefix in torch.__file__, torch.__file__\n"
        "print(torch.__version__)\n"
    )
    run = subprocess.run(
        [python, "-c", code], env={}, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "2.13.0+cpu"
    script = subprocess.run(
        [prefix / "bin" / "torchrun", "--help"], env={"PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "usage: torchrun" in script.stdout, script.stderr


@pytest.mark.slow
def test_the_recipes_own_tests_pass(profile: Profile) -> None:
    """Each package is installed with what it declares and nothing else, and its tests run there."""
    done = run_assembler(
        "test", "--profile", "cpu", "--json", "-q", "--keep-going", cwd=ROOT, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    tested = {
        Path(trial["path"]).name.rsplit("-", 2)[0]: trial
        for trial in report["packages"]
        if trial["tests"]
    }
    assert set(tested) >= {"pip", "triton", "flydsl", "pytorch"}
    for name, trial in tested.items():
        assert trial["outcome"] == "passed", (name, trial["words"])
        assert Path(trial["log"]).is_file()
