"""The flavour with a shell: the same image, but for its base."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from image_debs import make_base, make_deb
from image_packages import STACK, Item, fill_channel, layers, lock_of, members

from assembler.channel.index import publish
from assembler.image.layout import Layout
from assembler.lock.files import write_lock
from assembler.progress import SilentProgress
from assembler.sources.store import Store

BUSYBOX = Path("/bin/busybox")
FLAVOUR = """
[profile.tiny.flavours.debug]
summary = "with a shell"
base = ["busybox-static"]
"""


@pytest.fixture
def project(tmp_path):
    """A project with the locks of a profile and of its flavour."""
    root = tmp_path / "project"
    made = fill_channel(root / "made")
    (root / "stack.toml").write_text(STACK + FLAVOUR)
    packages = sorted(made.glob("*/*.conda"))
    publish(root / "channel", packages, progress=SilentProgress())
    store = Store(root / "build" / "store")
    base = make_base(store)
    shell = BUSYBOX.read_bytes() if BUSYBOX.exists() else b"busybox"
    busybox = make_deb(store, "busybox-static", [
        Item("usr/bin/busybox", shell, 0o755),
        Item("usr/share/man/man1/busybox.1.gz", b"cut"),
    ])  # fmt: skip
    for name, pins in (("tiny", base), ("tiny-debug", (*base, busybox))):
        write_lock(lock_of(root / "channel", base=pins, specs=("tiny",)), root / "locks" / name)
    return root


def assembler(project, *arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "assembler", *arguments], cwd=project, capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def image(project, *options):
    (found,) = json.loads(assembler(project, "image", "--json", *options))["images"]
    return found


def test_the_flavour_differs_in_its_base_alone(project):
    plain = image(project)
    debug = image(project, "--flavour", "debug")
    place = project / "build" / "images"
    assert debug["layout"] == str(place / "tiny-debug")
    assert (debug["tag"], debug["name"]) == ("debug", "tiny")
    assert [x["digest"] for x in debug["layers"][1:]] == [x["digest"] for x in plain["layers"][1:]]
    (entry,) = Layout(place / "tiny-debug").entries()
    name = entry["annotations"]["io.containerd.image.name"]
    assert name == "docker.io/library/tiny:debug"
    lower, upper = (
        {info.name: info for info, _ in members(next(layers(place / folder, tag)))}
        for folder, tag in (("tiny", "latest"), ("tiny-debug", "debug"))
    )
    status = {f"var/lib/dpkg/status.d/busybox-static{end}" for end in ("", ".md5sums")}
    assert upper.keys() - lower.keys() == {"usr/bin/busybox", "usr/bin/sh", *status}
    assert lower.keys() <= upper.keys()
    assert upper["usr/bin/sh"].linkname == "busybox"
    again = image(project)
    assert again["up_to_date"] is True
    assert again["digest"] == plain["digest"]


def test_commands_find_the_flavour_s_lock_and_image(project):
    error = subprocess.run(
        [sys.executable, "-m", "assembler", "reproduce", "--flavour", "debug"], cwd=project,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "build/images/tiny-debug" in error.stderr
    digest = image(project, "--flavour", "debug")["digest"]
    assert assembler(project, "reproduce", "--flavour", "debug") == f"identical: {digest}\n"
    bom = json.loads(assembler(project, "sbom", "--flavour", "debug"))
    assert "busybox-static" in {component["name"] for component in bom["components"]}


def findings(project, *options):
    """Return what the static gates find in a tiny image, which is no proper one."""
    gates = ("--gate", "hygiene", "--gate", "no-compilation", "--gate", "loader", "--gate", "size")
    done = subprocess.run(
        [sys.executable, "-m", "assembler", "verify", "--json", *gates, *options], cwd=project,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    (subject,) = json.loads(done.stdout)["subjects"]
    return {
        (finding["id"], finding["subject"])
        for gate in subject["gates"]
        for finding in gate["findings"]
    }


def test_no_gate_minds_the_shell(project):
    image(project)
    image(project, "--flavour", "debug")
    plain, debug = findings(project), findings(project, "--flavour", "debug")
    assert debug <= plain
    assert {finding for finding, _ in plain - debug} == {"hygiene/dead-script"}


def test_a_flavour_that_is_none(project):
    done = subprocess.run(
        [sys.executable, "-m", "assembler", "image", "--flavour", "debgu"], cwd=project,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "the flavours it offers are debug" in done.stderr


@pytest.mark.skipif(
    not BUSYBOX.exists() or not shutil.which("bwrap"), reason="no static busybox, or no bwrap"
)
def test_its_shell_runs(project, tmp_path):
    assembler(project, "image", "--flavour", "debug", "--format", "rootfs", "-o", "root.tar", "-q")
    with tarfile.open(project / "root.tar") as archive:
        archive.extractall(tmp_path / "root")
    done = subprocess.run(
        ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", tmp_path / "root", "/",
         "--clearenv", "--setenv", "PATH", "/opt/atom/bin", "/bin/sh", "-c",
         "ls /opt/atom/share/pure && echo $0"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "Operation not permitted" in done.stderr or "No permissions" in done.stderr:
        pytest.skip(f"bwrap does not work here: {done.stderr.strip()}")
    assert done.stdout == "readme\n/bin/sh\n", done.stderr
