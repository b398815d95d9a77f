"""The builder on the tiny stack: real recipes, real rattler-build, real processes."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
import zstandard

from assembler.build.builder import Builder, plan
from assembler.build.normal import EPOCH, PLACEHOLDER, read_stamp
from assembler.channel.index import check, read_records
from assembler.digest import sha256_file
from assembler.errors import BuildError
from assembler.progress import SilentProgress
from assembler.sources.fetch import fetch
from assembler.workspace import Workspace
from tests.conftest import TINY, run_assembler


def build(workspace: Workspace, *, jobs: int = 2, keep_going: bool = False) -> list[str]:
    """Build the tiny stack and return the names of what was built."""
    profile = workspace.stack().select(None)
    fetch(workspace, profile, SilentProgress())
    result = Builder(workspace, profile, SilentProgress(), jobs=jobs).run(keep_going=keep_going)
    return sorted(item.path.split("/")[1].rsplit("-", 2)[0] for item in result.built)


def contents(channel: Path) -> dict[str, str]:
    return {
        path.relative_to(channel).as_posix(): sha256_file(path)
        for path in sorted(channel.rglob("*"))
        if path.is_file()
    }


def test_the_channel_holds_every_package_and_nothing_else(tiny: Workspace) -> None:
    assert len(build(tiny)) == 8
    records = read_records(tiny.channel)
    assert {record.name for record in records} == {
        "tiny", "tiny-lib", "tiny-tool", "tiny-device-gfx942", "tiny-device-gfx950", "atom-device",
    }  # fmt: skip
    builds = {
        record.build.split("_")[0]: record for record in records if record.name == "atom-device"
    }
    assert set(builds) == {"all", "gfx942", "gfx950"}
    assert builds["all"].build_number > builds["gfx942"].build_number
    assert set(builds["all"].depends) == {"tiny-device-gfx942", "tiny-device-gfx950"}
    assert {path.name for path in tiny.channel.iterdir()} == {"linux-64", "noarch"}
    extra = [
        path.name
        for path in tiny.channel.glob("*/*")
        if path.suffix != ".conda" and not path.name.startswith("repodata.json")
    ]
    assert not extra
    assert check(tiny.channel) == ()


def test_a_second_build_does_nothing(tiny: Workspace) -> None:
    build(tiny)
    before = contents(tiny.channel)
    assert build(tiny) == []
    assert contents(tiny.channel) == before


def test_one_character_rebuilds_the_package_and_what_is_built_with_it(tiny: Workspace) -> None:
    build(tiny)
    script = tiny.recipes / "tiny-lib" / "build.sh"
    script.write_text(script.read_text().replace("data of the library", "data of the Library"))
    assert build(tiny) == ["tiny-lib", "tiny-tool"]
    assert len(read_records(tiny.channel)) == 8
    assert check(tiny.channel) == ()


def test_a_new_target_adds_packages_and_changes_no_other(tiny: Workspace) -> None:
    build(tiny)
    before = contents(tiny.channel)
    variants = tiny.recipes / "variants.yaml"
    variants.write_text(variants.read_text() + "  - gfx1201\n")
    # The selector's build for all targets changes too: it names the new package.
    assert build(tiny) == ["atom-device", "atom-device", "tiny-device-gfx1201"]
    after = contents(tiny.channel)
    unchanged = {
        path for path in before if "repodata" not in path and "atom-device-1.0-all" not in path
    }
    assert {path: before[path] for path in unchanged} == {path: after[path] for path in unchanged}


def test_build_scripts_see_their_target_in_the_tools_dialects(tiny: Workspace) -> None:
    script = tiny.recipes / "tiny-device" / "build.sh"
    assert 'test "$FLYDSL_GPU_ARCH $GPU_ARCHS" = "$1 $1"' in script.read_text()
    assert {"tiny-device-gfx942", "tiny-device-gfx950"} <= set(build(tiny))


def test_the_same_bytes_whatever_the_folder_umask_time_zone_and_home(
    tmp_path: Path, tiny: Workspace
) -> None:
    build(tiny)
    other = tmp_path / "another place + more" / "deep"
    other.parent.mkdir()
    shutil.copytree(TINY, other)
    script = (
        'umask 077; cd "$1"; export TZ=Asia/Kathmandu HOME=/nonexistent LC_ALL=tr_TR.UTF-8;'
        ' "$2" -m assembler fetch -q && exec "$2" -m assembler build -q -j 1'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(other), sys.executable],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert contents(other / "channel") == contents(tiny.channel)


def test_packages_are_in_normal_form(tiny: Workspace) -> None:
    build(tiny)
    package = next(tiny.channel.glob("linux-64/tiny-lib-*.conda"))
    stamp = read_stamp(package)
    assert f"h{stamp['input_key'][:7]}_0" in package.name
    with zipfile.ZipFile(package) as archive:
        assert {item.date_time[:3] for item in archive.infolist()} == {(1980, 1, 1)}
        for name in archive.namelist():
            if not name.endswith(".zst"):
                continue
            plain = zstandard.ZstdDecompressor().stream_reader(archive.open(name))
            with tarfile.open(fileobj=plain, mode="r|") as tar:
                for member in tar:
                    assert (member.mtime, member.uid, member.uname) == (EPOCH, 0, "")
                    assert member.mode in (0o644, 0o755) or member.issym()
                    stream = tar.extractfile(member) if member.isfile() else None
                    data = stream.read() if stream else b""
                    assert str(tiny.root).encode() not in data
                    if member.name == "info/paths.json":
                        paths = {path["_path"]: path for path in json.loads(data)["paths"]}
                        assert paths["bin/tiny"]["prefix_placeholder"] == PLACEHOLDER
                        assert paths["bin/tiny-link"]["sha256"] == paths["bin/tiny"]["sha256"]


def test_a_failing_script_is_one_sentence_and_leaves_the_channel(tiny: Workspace) -> None:
    build(tiny)
    before = contents(tiny.channel)
    (tiny.recipes / "tiny-lib" / "build.sh").write_text("echo about to fail; exit 3\n")
    with pytest.raises(BuildError, match=r"tiny-lib 1\.0 .*about to fail"):
        build(tiny)
    assert contents(tiny.channel) == before


def test_keep_going_builds_what_does_not_need_the_failed_package(tiny: Workspace) -> None:
    (tiny.recipes / "tiny-lib" / "build.sh").write_text("exit 3\n")
    with pytest.raises(BuildError):
        build(tiny, keep_going=True)
    names = {record.name for record in read_records(tiny.channel)}
    assert "tiny-device-gfx942" in names
    assert not names & {"tiny-lib", "tiny-tool"}
    assert check(tiny.channel) == ()


def test_list_says_why(tiny: Workspace) -> None:
    build(tiny)
    recipe = tiny.recipes / "tiny" / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "# a note\n")
    done = run_assembler("build", "--list", "--json", cwd=tiny.root)
    rows = {row["package"]: row for row in json.loads(done.stdout)["packages"]}
    changed = [row["why"] for row in rows.values() if row["state"] == "build"]
    assert changed == ["changed recipe: recipe.yaml"]
    assert len(plan(tiny, tiny.stack().select(None)).todo) == 1


@pytest.mark.parametrize(
    ("file", "text", "message", "code"),
    [
        ("recipes/tiny/recipe.yaml", "a: [", "is not valid YAML", 3),
        ("recipes/tiny/recipe.yaml", "package: {}", "cannot be rendered", 6),
        ("recipes/variants.yaml", "gfx_target: [gfx943]", "did you mean gfx942", 3),
        ("recipes/variants.yaml", "gfx_target: gfx942", "is not a list", 3),
        ("recipes/variants.yaml", "other: [a]", "no variant file", 3),
    ],
)
def test_bad_input_is_one_sentence_with_its_exit_code(
    tiny: Workspace, file: str, text: str, message: str, code: int
) -> None:
    build(tiny)
    before = contents(tiny.channel)
    (tiny.root / file).write_text(text)
    done = run_assembler("build", "-q", cwd=tiny.root)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert contents(tiny.channel) == before


@pytest.mark.slow
def test_twenty_killed_builds_leave_a_channel_that_is_whole_and_completes(tiny: Workspace) -> None:
    fetch(tiny, tiny.stack().select(None), SilentProgress())
    chance = random.Random(20261201)
    script = tiny.recipes / "tiny-lib" / "build.sh"
    original = script.read_text()
    for turn in range(20):
        script.write_text(f"{original}# {turn}\n")
        process = subprocess.Popen(
            [sys.executable, "-m", "assembler", "build", "-q"],
            cwd=tiny.root,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(0.15, 0.9))
        process.send_signal(signal.SIGKILL)
        process.wait()
        for record in read_records(tiny.channel):
            assert sha256_file(tiny.channel / record.path) == record.sha256
    build(tiny)
    assert len(read_records(tiny.channel)) == 8
    assert check(tiny.channel) == ()
