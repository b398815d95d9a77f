"""From recipes to a verified image on the tiny stack, through the command line."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from assembler.channel.index import check
from assembler.digest import sha256_file
from assembler.workspace import Workspace
from tests.conftest import TINY, run_assembler


def snapshot(workspace: Workspace) -> dict[str, str]:
    """Return the digests of everything a user keeps: channel, locks, image."""
    folders = (workspace.channel, workspace.locks, workspace.build / "images")
    return {
        str(path.relative_to(workspace.root)): sha256_file(path)
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def clean_image(workspace: Workspace, *options: str) -> dict:  # type: ignore[type-arg]
    done = run_assembler("clean-image", "-q", "--json", *options, cwd=workspace.root)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_two_runs_the_second_does_nothing(tiny: Workspace) -> None:
    first = clean_image(tiny)
    assert [stage["name"] for stage in first["stages"]] == [
        "fetch", "build", "lock", "image", "verify",
    ]  # fmt: skip
    assert first["gfx_targets"] == ["gfx942", "gfx950"]
    before = snapshot(tiny)
    times = {path: path.stat().st_mtime_ns for path in tiny.channel.rglob("*")}
    second = clean_image(tiny)
    assert second["up_to_date"]
    assert all(stage["up_to_date"] for stage in second["stages"])
    assert second["image"]["digest"] == first["image"]["digest"]
    assert snapshot(tiny) == before
    assert {path: path.stat().st_mtime_ns for path in tiny.channel.rglob("*")} == times


def test_the_last_line_is_what_the_next_command_needs(tiny: Workspace) -> None:
    done = run_assembler("clean-image", "-q", cwd=tiny.root)
    last = done.stdout.strip().splitlines()[-1]
    assert last == f"oci:{tiny.build / 'images' / 'tiny'}:latest"
    assert done.stderr == ""


def test_the_same_packages_lock_and_image_anywhere(tmp_path: Path, tiny: Workspace) -> None:
    here = clean_image(tiny)
    root = tmp_path / "another place + more"
    shutil.copytree(TINY, root)
    script = (
        'umask 077; cd "$1"; export TZ=Asia/Kathmandu HOME=/nonexistent LC_ALL=tr_TR.UTF-8'
        ' PYTHONHASHSEED=7; exec "$2" -m assembler clean-image -q --json -j 1'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(root), sys.executable],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    assert there["image"]["digest"] == here["image"]["digest"]
    assert snapshot(Workspace.at(root)) == snapshot(tiny)


def test_one_target_shares_every_host_layer(tiny: Workspace) -> None:
    every = clean_image(tiny)["image"]["layers"]
    one = clean_image(tiny, "--gfx", "gfx942")["image"]["layers"]
    host = {layer["digest"] for layer in one if "device" not in layer["name"]}
    shared = host & {layer["digest"] for layer in every}
    # The selector and the record of what was asked for differ, and they are the last, tiny layer.
    assert len(host - shared) <= 1
    assert [layer["name"] for layer in one if "device" in layer["name"]] == ["device-gfx942"]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--profile", "tyny"), 3, "did you mean 'tiny'"),
        (("--gfx", "gfx943"), 3, "did you mean gfx942"),
        (("--gfx", "gfx90a"), 8, "gfx90a"),
        (("--locked",), 9, "there is no lock"),
        (("--source", "atom=/nowhere"), 3, "atom"),
        (("--project", "recipes"), 3, "there is no stack.toml"),
        (("--no-such-option",), 2, "No such option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_wish_is_one_sentence_and_changes_no_image(
    tiny: Workspace, options: tuple[str, ...], code: int, words: str
) -> None:
    done = run_assembler("clean-image", "-q", *options, cwd=tiny.root)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tiny.build / "images").exists()
    assert not list(tiny.locks.rglob("*.yml"))


def test_errors_are_objects_with_json(tiny: Workspace) -> None:
    done = run_assembler("clean-image", "-q", "--json", "--gfx", "gfx943", cwd=tiny.root)
    error = json.loads(done.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("config", 3)
    assert {"saw", "remedy"} <= set(error)


@pytest.mark.parametrize("name", ["a b", "a+b", "100%", "#1", "ümläut"])
def test_channel_paths_with_odd_characters(tiny: Workspace, name: str) -> None:
    result = clean_image(tiny, "-c", name)
    assert (tiny.root / name / "noarch" / "repodata.json").is_file()
    assert result["image"]["digest"] == clean_image(tiny)["image"]["digest"]


def test_locked_refuses_a_changed_channel_and_keeps_the_lock(tiny: Workspace) -> None:
    clean_image(tiny)
    lock = snapshot(tiny)["locks/tiny/conda-lock.yml"]
    recipe = tiny.recipes / "tiny" / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "# note\n")
    done = run_assembler("clean-image", "-q", "--locked", cwd=tiny.root)
    assert done.returncode == 9, done.stderr
    assert "without --locked" in done.stderr
    assert snapshot(tiny)["locks/tiny/conda-lock.yml"] == lock
    clean_image(tiny)


def test_a_lock_edited_by_hand_is_made_anew_and_refused_with_locked(tiny: Workspace) -> None:
    clean_image(tiny)
    before = snapshot(tiny)
    file = tiny.locks / "tiny" / "conda-lock.yml"
    file.write_text(file.read_text().replace("tiny-lib", "tiny-lob"))
    assert run_assembler("clean-image", "-q", "--locked", cwd=tiny.root).returncode == 9
    clean_image(tiny)
    assert snapshot(tiny) == before


def test_a_full_disk_is_told_and_the_former_image_stays(tiny: Workspace, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    script = (
        'mount -t tmpfs -o size=700k tmpfs "$1" && cp -r "$2"/. "$1"/ && cd "$1" && '
        'head -c 400000 /dev/urandom > recipes/tiny-lib/big && echo "cp \\$RECIPE_DIR/big '
        '\\$PREFIX/lib/tiny/" >> recipes/tiny-lib/build.sh && "$3" -m assembler clean-image -q'
        "; echo code $?; find . -path ./build -prune -o -name '*.conda' -print | wc -l"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script, "bash",
         str(small), str(TINY), sys.executable],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if "Operation not permitted" in done.stderr or "code" not in done.stdout:
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()[:100]}")
    assert "code 12" in done.stdout, done.stdout + done.stderr
    assert "disk is full" in done.stderr
    assert "Traceback" not in done.stderr


COMPILER = """
mkdir -p $PREFIX/bin
printf '#!/bin/sh\\n' > $PREFIX/bin/gcc
chmod +x $PREFIX/bin/gcc
"""


def images(workspace: Workspace) -> dict[str, str]:
    return {name: digest for name, digest in snapshot(workspace).items() if "images/" in name}


def test_an_image_that_fails_verify_takes_no_place(tiny: Workspace) -> None:
    script = tiny.recipes / "tiny-lib" / "build.sh"
    original = script.read_text()
    script.write_text(original + COMPILER)
    layout = tiny.build / "images" / "tiny"
    done = run_assembler("clean-image", "-q", cwd=tiny.root)
    assert done.returncode == 11, done.stderr
    assert f"{layout} was not made; run it again with --keep-failed" in done.stderr
    assert not layout.exists()
    script.write_text(original)
    digest = clean_image(tiny)["image"]["digest"]
    before = images(tiny)
    script.write_text(original + COMPILER)
    failed = layout.with_name("tiny.failed")
    for options in ((), ("--keep-failed",), ("--keep-failed", "--json")):
        done = run_assembler("clean-image", "-q", *options, cwd=tiny.root)
        assert done.returncode == 11, done.stderr
        assert f"{layout} is as it was" in done.stderr + done.stdout
        assert "no-compilation/compiler opt/atom/bin/gcc" in done.stderr + done.stdout
        kept = {name for name in images(tiny) if "tiny.failed" not in name}
        assert {name: images(tiny)[name] for name in kept} == before
        assert failed.exists() == bool(options)
    assert f"assembler verify {failed}" in done.stdout
    found = run_assembler("verify", "-q", "--gate", "no-compilation", failed, cwd=tiny.root)
    assert found.returncode == 25
    assert "opt/atom/bin/gcc" in found.stdout
    # The layers that both have are there once.
    blobs = layout / "blobs" / "sha256"
    assert any(path.stat().st_nlink == 2 for path in blobs.iterdir())
    script.write_text(original)
    again = clean_image(tiny)
    assert again["image"]["digest"] == digest
    assert again["image"]["layout"] == str(layout)
    assert [stage["up_to_date"] for stage in again["stages"][-2:]] == [True, True]


@pytest.mark.slow
def test_killed_runs_never_show_half_an_image_and_the_next_completes(tiny: Workspace) -> None:
    digest = clean_image(tiny)["image"]["digest"]
    layout = tiny.build / "images" / "tiny"
    chance = random.Random(5)
    script = tiny.recipes / "tiny-lib" / "build.sh"
    original = script.read_text()
    index = (layout / "index.json").read_text()
    for turn in range(8):
        fails = turn % 2
        script.write_text(f"{original}# {turn}\n{COMPILER if fails else ''}")
        process = subprocess.Popen(
            [sys.executable, "-m", "assembler", "clean-image", "-q"],
            cwd=tiny.root,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(0.3, 2.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not fails or (layout / "index.json").read_text() == index
        index = (layout / "index.json").read_text()
        for entry in json.loads(index)["manifests"]:
            manifest = json.loads((layout / "blobs/sha256" / entry["digest"][7:]).read_text())
            for blob in (manifest["config"], *manifest["layers"]):
                file = layout / "blobs/sha256" / blob["digest"][7:]
                assert file.stat().st_size == blob["size"]
    script.write_text(original)
    assert clean_image(tiny)["image"]["digest"] == digest
    assert check(tiny.channel) == ()
    assert {path.name for path in layout.parent.iterdir()} == {"tiny", ".tiny.state"}


def test_two_runs_at_once_both_succeed(tiny: Workspace) -> None:
    command = [sys.executable, "-m", "assembler", "clean-image", "-q", "--json"]
    runs = [
        subprocess.Popen(
            command,
            cwd=tiny.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ},
        )
        for _ in range(2)
    ]
    outputs = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    digests = {json.loads(out)["image"]["digest"] for out, _err in outputs}
    assert len(digests) == 1
    assert check(tiny.channel) == ()
