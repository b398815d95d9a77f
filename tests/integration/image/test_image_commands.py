"""The commands of the image room, run as users run them."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from image_debs import make_base
from image_packages import STACK, Item, fill_channel, lock_of, make_conda

from assembler.channel.index import publish
from assembler.image.layout import Layout
from assembler.image.selection import narrow
from assembler.lock.files import read_lock, write_lock
from assembler.progress import SilentProgress
from assembler.sources.store import Store
from assembler.stack import read_stack


@pytest.fixture
def project(tmp_path):
    """A project whose channel, lock and store are there; the path has a space and a plus."""
    root = tmp_path / "a project+"
    fill_channel(root / "made")
    for target in ("gfx942", "gfx950"):
        make_conda(root / "made", f"kernels-device-{target}", [Item(f"share/{target}", b"code")])
        make_conda(
            root / "made", "atom-device", [Item("share/device", target.encode())],
            build=f"{target}_h0000000_0", depends=[f"kernels-device-{target}"],
        )  # fmt: skip
    make_conda(
        root / "made", "atom-device", [Item("share/device", b"all")], build="all_h0000000_1",
        depends=["kernels-device-gfx942", "kernels-device-gfx950"], number=1,
    )  # fmt: skip
    (root / "stack.toml").write_text(STACK)
    publish(root / "channel", sorted((root / "made").glob("*/*.conda")), progress=SilentProgress())
    for path in (root / "channel").glob("*/atom-device-*-gfx*"):
        path.rename(root / path.name)
    base = make_base(Store(root / "build" / "store"))
    lock = lock_of(
        root / "channel", base=base, gfx=("gfx942", "gfx950"), specs=("tiny", "pure", "atom-device")
    )
    for path in root.glob("atom-device-*-gfx*"):
        path.rename(root / "channel" / "linux-64" / path.name)
    write_lock(lock, root / "locks" / "tiny")
    return root


def assembler(project: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "assembler", *arguments], cwd=project, capture_output=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return done


def images(done: subprocess.CompletedProcess[bytes]) -> list[dict]:
    return json.loads(done.stdout)["images"]


def test_image_tells_what_it_made(project):
    text = assembler(project, "image").stdout.decode()
    assert "tiny:latest assembled in" in text
    assert "sha256:" in text
    assert "build/images/tiny" in text
    (image,) = images(assembler(project, "image", "--json"))
    assert image["up_to_date"] is True
    assert image["digest"] in text
    assert assembler(project, "image", "-q").stdout.decode().startswith("tiny:latest up to date")


def test_plan_says_what_a_node_pulls(project):
    before = json.loads(assembler(project, "image", "--plan", "--json").stdout)["plan"]["latest"]
    assert not any(layer["held"] for layer in before)
    assert not (project / "build" / "images").exists()
    assembler(project, "image")
    after = json.loads(assembler(project, "image", "--plan", "--json").stdout)["plan"]["latest"]
    assert all(layer["held"] and layer["digest"] for layer in after)
    words = assembler(project, "image", "--plan").stdout.decode()
    assert "pulls 0 bytes in 0 of" in words


def plan(project, *options):
    return json.loads(assembler(project, "image", "--plan", "--json", *options).stdout)


def test_plan_looks_into_the_cache_that_is_named(project):
    assembler(project, "image", "--cache", "elsewhere")
    assert not any(layer["digest"] for layer in plan(project)["plan"]["latest"])
    assert plan(project)["pull"]["latest"]["exact"] is False
    found = plan(project, "--cache", "elsewhere")
    assert all(layer["held"] for layer in found["plan"]["latest"])
    assert found["pull"]["latest"]["size"] == found["pull"]["latest"]["layers"] == 0
    assert found["pull"]["latest"]["exact"] is True


def test_plan_says_what_holders_of_an_older_image_pull(project):
    (old,) = images(assembler(project, "image", "--json", "--gfx", "gfx942", "-o", "old"))
    (new,) = images(assembler(project, "image", "--json"))
    digests = {layer["digest"] for layer in old["layers"]}
    missing = [layer for layer in new["layers"] if layer["digest"] not in digests]
    assert missing
    assembler(project, "image", "--format", "archive", "-o", "old.tar", "--gfx", "gfx942",
              "--cache", "other")  # fmt: skip
    assembler(project, "image")
    for since in ("old", "old:gfx942", "old.tar", f"old@{old['digest']}"):
        found = plan(project, "--since", since)
        assert found["since"] == since
        assert found["pull"]["latest"] == {
            "size": sum(layer["compressed_size"] for layer in missing), "layers": len(missing),
            "image_size": new["compressed_size"], "image_layers": len(new["layers"]),
            "exact": True,
        }  # fmt: skip
    words = assembler(project, "image", "--plan", "--since", "old").stdout.decode()
    assert "a node that holds old pulls " in words
    assert f"in {len(missing)} of {len(new['layers'])} layers" in words


def test_a_repair_keeps_the_attestations(project):
    (image,) = images(assembler(project, "image", "--json"))
    assembler(project, "sbom", "--attach")
    layout = Layout(project / "build" / "images" / "tiny")
    before = layout.entries()
    assert len(before) == 4
    blob = layout.blob(image["layers"][0]["digest"])
    blob.write_bytes(bytes(blob.stat().st_size))
    (again,) = images(assembler(project, "image", "--json"))
    assert again["up_to_date"] is False
    assert again["digest"] == image["digest"]
    assert layout.entries() == before
    assert all(map(layout.is_complete, before))
    assert not layout.leftovers()
    # One that is damaged itself goes, and is told; those of another image go without a word.
    document = layout.document(before[1]["digest"])["layers"][0]["digest"]
    layout.blob(document).write_bytes(b"x")
    blob.write_bytes(b"")
    words = assembler(project, "image").stderr.decode()
    assert "1 damaged attestations were dropped" in words
    assert layout.entries() == (before[0], *before[2:])
    assembler(project, "image", "--max-layers", "2", "-q")
    (only,) = layout.entries()
    assert only["digest"] != image["digest"]
    assert not layout.leftovers()


def test_archive_to_a_file_and_to_a_pipe(project):
    assembler(project, "image", "--format", "archive", "-o", "image.tar")
    piped = assembler(project, "image", "--format", "archive", "-o", "-", "-q").stdout
    assert piped == (project / "image.tar").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(piped)) as archive:
        names = archive.getnames()
        assert len(names) == len(set(names))
        (docker,) = json.load(archive.extractfile("manifest.json"))
        assert docker["RepoTags"] == ["tiny:latest"]
        assert {docker["Config"], *docker["Layers"]} <= set(names)
        entry = json.load(archive.extractfile("index.json"))["manifests"][0]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "latest"
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/library/tiny:latest"


def test_the_file_system_as_one_tar(project):
    assembler(project, "image", "--format", "rootfs", "-o", "root.tar")
    piped = assembler(project, "image", "--format", "rootfs", "-o", "-", "-q").stdout
    assert piped == (project / "root.tar").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(piped)) as archive:
        found = {info.name: info for info in archive}
        assert len(found) == len(archive.getnames())
    assert {"usr/lib/os-release", "opt/atom/bin/tiny", "tmp", "home/nonroot"} <= set(found)
    assert found["lib64"].issym()
    assert found["tmp"].mode == 0o1777
    assert found["home/nonroot"].uid == 65532


def test_a_pipe_whose_reader_goes_away(project):
    make_conda(project / "channel", "big", [Item("share/big", os.urandom(3 << 20))])
    for path in (project / "channel").glob("*/atom-device-*-gfx*"):
        path.unlink()
    write_lock(lock_of(project / "channel", specs=("big",)), project / "big")
    command = [sys.executable, "-m", "assembler", "image", "--lock", "big", "--format", "archive",
               "-o", "-", "-q"]  # fmt: skip
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:  # fmt: skip
        process.stdout.read(1000)
        process.stdout.close()
        error = process.stderr.read().decode()
        assert process.wait() == 10
    assert error.strip().splitlines()[-1].startswith("assembler: the reader of the pipe went away")
    assert "Traceback" not in error


def test_several_targets_share_their_host_layers(project):
    done = assembler(project, "image", "--json", "--gfx", "gfx942", "--gfx", "gfx950",
                     "--gfx", "all")  # fmt: skip
    by_tag = {image["tag"]: image for image in images(done)}
    assert set(by_tag) == {"gfx942", "gfx950", "all"}
    digests = {
        tag: {layer["digest"] for layer in image["layers"] if layer["name"] not in
              ("app", "device-gfx942", "device-gfx950")}
        for tag, image in by_tag.items()
    }  # fmt: skip
    assert digests["gfx942"] == digests["gfx950"] == digests["all"]
    names = [name for layer in by_tag["gfx942"]["layers"] for name in layer["packages"]]
    assert "kernels-device-gfx942" in names
    assert "kernels-device-gfx950" not in names
    entries = Layout(project / "build" / "images" / "tiny").entries()
    assert [entry["annotations"]["io.github.rocm.atom.gfx-targets"] for entry in entries] == [
        "gfx942", "gfx950", "gfx942,gfx950",
    ]  # fmt: skip
    alone = images(assembler(project, "image", "--json", "--gfx", "gfx942", "-o", "alone"))
    assert alone[0]["digest"] == by_tag["gfx942"]["digest"]


@pytest.mark.parametrize(
    "options", [("--max-layers", "3"), ("--gfx", "gfx950"), ("--max-layer-size", "25KB")]
)
def test_reproduce_says_identical(project, options):
    (image,) = images(assembler(project, "image", "--json", "--level", "5", *options))
    assert assembler(project, "reproduce").stdout.decode() == f"identical: {image['digest']}\n"
    assert not list((project / "build").glob("reproduce-*"))


def test_reproduce_names_layer_and_entry(project):
    (image,) = images(assembler(project, "image", "--json"))
    layout = Layout(project / "build" / "images" / "tiny")
    layer = next(layer for layer in image["layers"] if "tiny" in layer["packages"])
    blob = layout.blob(layer["digest"])
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    error = assembler(project, "reproduce", code=11).stderr.decode()
    assert f"layer {layer['name']}" in error
    assert "opt/atom/" in error


def test_reproduce_needs_the_image_s_lock(project):
    assembler(project, "image")
    channel = project / "channel"
    for path in channel.glob("*/atom-device-*-gfx*"):
        path.unlink()
    write_lock(lock_of(channel, specs=("pure",)), project / "locks" / "tiny")
    error = assembler(project, "reproduce", code=9).stderr.decode()
    assert "name its lock with --lock" in error


def test_sbom_to_a_file_to_stdout_and_attached(project):
    assembler(project, "image", "--gfx", "gfx942", "--gfx", "all")
    assembler(project, "sbom", "--tag", "gfx942", "-o", "one.json")
    bom = json.loads((project / "one.json").read_bytes())
    names = {component["name"] for component in bom["components"]}
    assert {"tiny", "kernels-device-gfx942", "libc6"} <= names
    assert "kernels-device-gfx950" not in names
    spdx = json.loads(assembler(project, "sbom", "-t", "all", "--format", "spdx").stdout)
    assert spdx["spdxVersion"] == "SPDX-2.3"
    statement = json.loads(assembler(project, "sbom", "-t", "all", "--format", "provenance").stdout)
    assert statement["predicate"]["buildDefinition"]["externalParameters"]["specs"]
    added = json.loads(assembler(project, "sbom", "--attach", "--json").stdout)["attached"]
    assert len(added) == 6
    (first, *_) = images(assembler(project, "image", "--json", "--gfx", "gfx942", "--gfx", "all"))
    assert first["up_to_date"] is True
    assert len(Layout(project / "build" / "images" / "tiny").entries()) == 8


def test_a_lock_of_one_target_cannot_serve_another_in_one_sentence(project):
    stack = read_stack(project / "stack.toml")
    lock = read_lock(project / "locks" / "tiny" / "conda-lock.yml")
    narrowed = narrow(lock, project / "channel", stack.select("tiny"), "gfx942")
    write_lock(narrowed, project / "locks" / "tiny")
    error = assembler(project, "image", "-q", "--gfx", "gfx942", "--gfx", "gfx950", code=8)
    (line,) = error.stderr.decode().splitlines()
    assert line.startswith("assembler: the lock cannot serve gfx950 (")
    assert not set(line) & set("├└─│")


def test_verify_and_image_find_and_mend_flipped_bytes(project):
    (image,) = images(assembler(project, "image", "--json"))
    layout = Layout(project / "build" / "images" / "tiny")
    before = {path.name: path.read_bytes() for path in layout.blobs.iterdir()}
    blob = layout.blob(image["layers"][-1]["digest"])
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    error = assembler(project, "verify", "--gate", "hygiene", code=10).stderr.decode()
    assert f"should be sha256:{blob.name}" in error
    (again,) = images(assembler(project, "image", "--json"))
    assert again["up_to_date"] is False
    assert {path.name: path.read_bytes() for path in layout.blobs.iterdir()} == before
    (last,) = images(assembler(project, "image", "--json"))
    assert last["up_to_date"] is True


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["image", "--gfx", "gfx94"], 3, "did you mean gfx942?"),
        (["image", "--gfx", "gfx90a"], 8, "no device packages for gfx90a"),
        (["image", "--level", "99"], 3, "zstd has no level 99"),
        (["image", "-o", "-"], 3, "add --format archive"),
        (["image", "--since", "old"], 3, "add --plan"),
        (["image", "--plan", "--since", "nowhere"], 3, "there is no image at"),
        (["image", "--max-layers", "200"], 3, "choose one from 1 to 100"),
        (["image", "--max-layer-size", "big"], 3, "is not a size"),
        (["image", "--max-layer-size", "1KB"], 3, "raise --max-layer-size"),
        (["image", "--tag", "a:b"], 3, "is not a tag"),
        (["image", "--lock", "nowhere.yml"], 3, "there is no lock"),
        (["image", "-o", "stack.toml"], 10, "is no OCI image layout"),
        (["image", "--base", "nowhere.tar"], 3, "there is no image at"),
        (["image", "--base", "nowhere"], 3, "there is no image at"),
        (["load"], 10, "there is no image at"),
        (["push", "atom"], 10, "names no repository"),
        (["reproduce", "channel"], 10, "there is no image at"),
    ],
)
def test_mistakes_get_a_sentence_and_a_code(project, arguments, code, words):
    assert words in assembler(project, *arguments, code=code).stderr.decode()


def test_a_store_without_the_base_is_filled_or_told(project, monkeypatch):
    shutil.rmtree(project / "build" / "store")
    done = assembler(project, "image", code=5)
    assert b"apt" in done.stderr
    assert not (project / "build" / "images" / "tiny").exists()
