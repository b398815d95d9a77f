"""Engines take what is written: skopeo, umoci, podman and docker, whichever are here."""

from __future__ import annotations

import http.server
import json
import os
import platform
import shlex
import shutil
import socket as sockets
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
from image_debs import make_base
from image_packages import Item, installed, lock_of, make_conda, need, union

from assembler.errors import ImageError, MissingToolError
from assembler.image.archive import write_archive
from assembler.image.compression import Codec
from assembler.image.engine import find_engine, load
from assembler.image.layout import Layout
from assembler.image.registry import Pusher, Reference
from assembler.image.request import Options
from assembler.progress import SilentProgress
from assembler.sources.store import Store

pytestmark = pytest.mark.engine
GREETING = b"hello from the image\n"
LIMITS = ["nofile=1024:1024", "nproc=1024:1024"]


def greeter() -> bytes:
    """Return a static x86-64 program that writes the greeting: no libc, no loader."""
    code = (
        b"\xb8\x01\x00\x00\x00\xbf\x01\x00\x00\x00\x48\x8d\x35\x10\x00\x00\x00\xba"
        + struct.pack("<I", len(GREETING))
        + b"\x0f\x05\xb8\x3c\x00\x00\x00\x31\xff\x0f\x05"
    )
    assert len(code) == 0x21
    size = 64 + 56 + len(code) + len(GREETING)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        2,
        62,
        1,
        0x400078,
        64,
        0,
        0,
        64,
        56,
        1,
        0,
        0,
        0,
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, size, size, 0x1000)
    return head + segment + code + GREETING


@pytest.fixture
def runnable(channel):
    """A channel whose entry point runs in an image without a C library."""
    if platform.machine() != "x86_64":
        pytest.skip("the test program is for x86-64")
    for path in channel.glob("*/tiny-*"):
        path.unlink()
    make_conda(channel, "tiny", [Item("bin/tiny", greeter(), 0o755)])
    return channel


def run(*command: str | Path, env: dict[str, str] | None = None, check: bool = True) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}, timeout=120,
    )  # fmt: skip
    if check and done.returncode:
        raise AssertionError(f"{command}: {done.stderr}")
    return done.stdout


def archive(layout: Path) -> Path:
    path = layout.with_suffix(".tar")
    with path.open("wb") as sink:
        write_archive(Layout(layout), sink, SilentProgress())
    return path


@pytest.mark.parametrize(
    "codec", [Codec("zstd", 3), Codec("gzip", 6)], ids=lambda codec: codec.name
)
def test_skopeo_keeps_the_digest(make_image, channel, tmp_path, codec):
    skopeo = need("skopeo")
    lock = lock_of(channel, base=make_base(Store(tmp_path / "store")))
    result = make_image(lock, channel, options=Options(codec=codec))
    facts = json.loads(run(skopeo, "inspect", f"oci:{result.layout}:latest"))
    assert facts["Digest"] == result.digest
    assert facts["Layers"] == [layer.digest for layer in result.layers]
    run(skopeo, "--insecure-policy", "copy", f"oci:{result.layout}:latest",
        f"oci:{tmp_path / 'copy'}:latest")  # fmt: skip
    assert Layout(tmp_path / "copy").entries()[0]["digest"] == result.digest
    run(skopeo, "--insecure-policy", "copy", f"oci-archive:{archive(result.layout)}:latest",
        f"oci:{tmp_path / 'again'}:latest")  # fmt: skip
    assert Layout(tmp_path / "again").entries()[0]["digest"] == result.digest


def test_umoci_unpacks_the_union(make_image, channel, tmp_path):
    umoci = need("umoci")
    result = make_image(lock_of(channel), channel, options=Options(codec=Codec("gzip", 6)))
    bundle = tmp_path / "bundle"
    run(umoci, "unpack", *(["--rootless"] if os.geteuid() else []),
        "--image", f"{result.layout}:latest", bundle)  # fmt: skip
    config = json.loads((bundle / "config.json").read_text())
    assert config["process"]["user"] == {"uid": 65532, "gid": 65532}
    assert config["process"]["args"] == ["/opt/atom/bin/tiny"]
    skopeo = need("skopeo")
    run(skopeo, "inspect", f"oci:{result.layout}:latest")
    plain = make_image(lock_of(channel), channel, tmp_path / "zstd", tag="latest")
    assert installed(bundle / "rootfs" / "opt" / "atom") == union(plain.layout, "/opt/atom")


@pytest.fixture
def podman(tmp_path):
    """podman with storage of its own; skipped where it cannot run containers."""
    program = need("podman")
    runtime = need("runc") if shutil.which("runc") else need("crun")
    (tmp_path / "containers.conf").write_text(
        "[containers]\ndefault_ulimits=" + json.dumps(LIMITS) + '\nnetns="none"\n'
        '[engine]\ncgroup_manager="cgroupfs"\nevents_logger="file"\n'
    )
    environment = {
        "CONTAINERS_CONF": str(tmp_path / "containers.conf"),
        "PODMAN_IGNORE_CGROUPSV1_WARNING": "1",
    }
    # podman takes no run root over 50 characters.
    folder = Path(tempfile.mkdtemp(prefix="pod-", dir="/tmp"))
    storage = ["--root", folder / "root", "--runroot", folder / "run", "--storage-driver", "vfs"]
    storage += ["--cgroup-manager", "cgroupfs", "--runtime", runtime]

    def call(*arguments: str | Path) -> str:
        return run(program, *storage, *arguments, env=environment)

    words = [f"{name}={value}" for name, value in environment.items()]
    call.shell = shlex.join(["env", *words, program, *map(str, storage)])
    probe = subprocess.run(
        [program, *map(str, storage), "info"], env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip(f"podman does not run here: {probe.stderr.strip()[-200:]}")
    yield call
    call("rmi", "--all", "--force")
    shutil.rmtree(folder, ignore_errors=True)


def test_podman_loads_and_runs_both_formats(make_image, runnable, tmp_path, podman):
    result = make_image(lock_of(runnable), runnable)
    podman("load", "-q", "-i", archive(result.layout))
    digests = podman("images", "--format", "{{.Digest}}").split()
    assert result.digest in digests
    pulled = podman("pull", "-q", f"oci:{result.layout}:latest").strip()
    assert podman(
        "run", "--rm", "--network", "none", "--read-only", "--cap-drop=all",
        "--security-opt", "no-new-privileges", pulled,
    ) == GREETING.decode()  # fmt: skip


def test_load_uses_the_engine_on_path(make_image, runnable, tmp_path, podman, monkeypatch):
    result = make_image(lock_of(runnable), runnable)
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "podman"
    wrapper.write_text(f'#!/bin/sh\n{podman.shell} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    engine = find_engine("podman")
    assert "tiny:latest" in load(Layout(result.layout), engine, SilentProgress())
    assert result.digest in podman("images", "--format", "{{.Digest}}").split()


def test_an_engine_that_is_not_there(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingToolError, match="docker is not installed, podman is not"):
        find_engine()


@pytest.fixture
def docker(tmp_path):
    """A docker daemon of its own, ended with the test; skipped where it does not start."""
    program, daemon = need("docker"), need("dockerd")
    if os.geteuid():
        pytest.skip("dockerd needs root")
    socket = f"unix://{tmp_path / 'd.sock'}"
    (tmp_path / "daemon.json").write_text("{}")
    with (tmp_path / "dockerd.log").open("w") as log:
        process = subprocess.Popen(
            [daemon, "--config-file", tmp_path / "daemon.json", "--data-root", tmp_path / "data",
             "--exec-root", tmp_path / "exec", "--pidfile", tmp_path / "pid", "-H", socket,
             "--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs",
             *(f"--default-ulimit={limit}" for limit in LIMITS)],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 30
        while subprocess.run([program, "-H", socket, "version"], capture_output=True,
                             check=False).returncode:  # fmt: skip
            if process.poll() is not None or time.monotonic() > deadline:
                lines = (tmp_path / "dockerd.log").read_text().strip().splitlines()
                pytest.skip(f"dockerd does not start here: {(lines or ['no message'])[-1]}")
            time.sleep(0.2)
        os.environ["DOCKER_HOST"] = socket
        yield lambda *arguments: run(program, *arguments)
    finally:
        os.environ.pop("DOCKER_HOST", None)
        process.terminate()
        process.wait(30)
        # The daemon mounts its own folder onto itself and leaves that behind.
        subprocess.run(["umount", "-R", tmp_path / "data"], check=False, capture_output=True)


@pytest.mark.slow
def test_docker_loads_and_runs_the_archive(make_image, runnable, docker):
    version = docker("version", "--format", "{{.Server.Version}}").strip()
    codec = Codec("gzip", 6) if int(version.split(".")[0]) < 23 else Codec("zstd", 3)
    result = make_image(lock_of(runnable), runnable, options=Options(codec=codec))
    engine = find_engine("docker")
    assert engine.version == version
    assert "tiny:latest" in load(Layout(result.layout), engine, SilentProgress())
    if not engine.takes_zstd:
        zstd = make_image(lock_of(runnable), runnable, result.layout.with_name("zstd"))
        with pytest.raises(ImageError, match="does not read zstd layers; assemble with --compr"):
            load(Layout(zstd.layout), engine, SilentProgress())
    config = Layout(result.layout).document(result.digest)["config"]["digest"]
    assert docker("image", "inspect", "--format", "{{.Id}}", "tiny:latest").strip() == config
    assert docker("run", "--rm", "--network", "none", "--read-only", "tiny:latest") == (
        GREETING.decode()
    )


def test_a_second_push_sends_nothing(make_image, channel, tmp_path, registry):
    result = make_image(lock_of(channel), channel)
    pusher = Pusher(Layout(result.layout), Reference.parse(f"{registry}/a/tiny"), SilentProgress())
    first = pusher.push(("1.0", "latest"))
    assert first.references == (f"{registry}/a/tiny:1.0", f"{registry}/a/tiny:latest")
    assert first.digests == (result.digest,)
    assert first.sent_blobs == len(result.layers) + 1
    second = pusher.push(("1.0",))
    assert (second.sent_blobs, second.sent_bytes) == (0, 0)
    assert second.present_blobs == first.sent_blobs
    skopeo = need("skopeo")
    for reference in (f"{registry}/a/tiny:1.0", f"{registry}/a/tiny@{result.digest}"):
        facts = json.loads(run(skopeo, "inspect", "--tls-verify=false", f"docker://{reference}"))
        assert facts["Digest"] == result.digest
    run(skopeo, "--insecure-policy", "copy", "--src-tls-verify=false",
        f"docker://{registry}/a/tiny@{result.digest}", f"oci:{tmp_path / 'pulled'}:x")  # fmt: skip
    assert Layout(tmp_path / "pulled").entries()[0]["digest"] == result.digest


def test_registries_that_do_not_answer(make_image, channel):
    result = make_image(lock_of(channel), channel)
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pusher = Pusher(Layout(result.layout), Reference.parse(f"localhost:{port}/x"), SilentProgress())
    with pytest.raises(ImageError, match="cannot be reached"):
        pusher.push()


def test_registries_that_ask_for_a_login(make_image, channel):
    class Closed(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="closed"')
            self.end_headers()

        def log_message(self, *arguments):
            pass

    result = make_image(lock_of(channel), channel)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Closed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = Reference.parse(f"127.0.0.1:{server.server_port}/x")
        with pytest.raises(ImageError, match=r"refuses x .*; log in with `docker login 127"):
            Pusher(Layout(result.layout), where, SilentProgress()).push()
        server.shutdown()


@pytest.mark.parametrize("text", ["atom", "rocm/atom", "a.example/ROCm/x", "a.example/", "a.b/c:"])
def test_references_without_a_registry(text):
    with pytest.raises(ImageError, match="names no repository"):
        Reference.parse(text)
