"""Engines take what is written: skopeo, umoci, runc and podman, whichever are here."""

from __future__ import annotations

import http.server
import json
import os
import re
import shlex
import shutil
import socket as sockets
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from image_debs import make_base
from image_packages import installed, lock_of, need, union
from image_runs import CODECS, GREETING, LIMITS, archive, run

from assembler.errors import ImageError, MissingToolError
from assembler.image.compression import Codec
from assembler.image.engine import find_engine, load
from assembler.image.layout import Layout
from assembler.image.registry import Pusher, Reference
from assembler.image.request import Options
from assembler.progress import SilentProgress
from assembler.sources.store import Store

pytestmark = pytest.mark.engine
CONFINED = (
    "run", "--rm", "--network", "none", "--read-only", "--cap-drop=all",
    "--security-opt", "no-new-privileges",
)  # fmt: skip
each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


@each_codec
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


def need_umoci(codec: Codec) -> str:
    """Return umoci's path; skipped when it reads no such layers."""
    umoci = need("umoci")
    version = tuple(map(int, re.findall(r"\d+", run(umoci, "--version"))[:2]))
    if codec.name == "zstd" and version < (0, 6):
        pytest.skip(f"umoci {'.'.join(map(str, version))} reads no zstd layers")
    return umoci


@each_codec
def test_runc_runs_what_umoci_unpacks(make_image, runnable, tmp_path, codec):
    umoci, runc = need_umoci(codec), need("runc")
    if os.geteuid():
        pytest.skip("runc needs root here")
    result = make_image(lock_of(runnable), runnable, options=Options(codec=codec))
    bundle = tmp_path / "bundle"
    run(umoci, "unpack", "--image", f"{result.layout}:latest", bundle)
    config = json.loads((bundle / "config.json").read_text())
    config["process"] |= {"terminal": False, "rlimits": []}
    config["root"]["readonly"] = True
    (bundle / "config.json").write_text(json.dumps(config))
    name = f"assembler-test-{os.getpid()}"
    said = run(runc, "--root", tmp_path / "state", "run", "--bundle", bundle, name)
    assert said == GREETING.decode()


@each_codec
def test_umoci_unpacks_the_union(make_image, channel, tmp_path, codec):
    umoci = need_umoci(codec)
    result = make_image(lock_of(channel), channel, options=Options(codec=codec))
    bundle = tmp_path / "bundle"
    run(umoci, "unpack", *(["--rootless"] if os.geteuid() else []),
        "--image", f"{result.layout}:latest", bundle)  # fmt: skip
    config = json.loads((bundle / "config.json").read_text())
    assert config["process"]["user"] == {"uid": 65532, "gid": 65532}
    assert config["process"]["args"] == ["/opt/atom/bin/tiny"]
    plain = make_image(lock_of(channel), channel, tmp_path / "plain", tag="latest")
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


@each_codec
def test_podman_loads_and_runs_both_formats(make_image, runnable, tmp_path, podman, codec):
    result = make_image(lock_of(runnable), runnable, options=Options(codec=codec))
    podman("load", "-q", "-i", archive(result.layout))
    digests = podman("images", "--format", "{{.Digest}}").split()
    assert result.digest in digests
    assert podman(*CONFINED, "tiny:latest") == GREETING.decode()
    podman("rmi", "--all", "--force")
    pulled = podman("pull", "-q", f"oci:{result.layout}:latest").strip()
    assert podman(*CONFINED, pulled) == GREETING.decode()


def test_podman_runs_what_it_pulls_by_digest(make_image, runnable, podman, registry):
    result = make_image(lock_of(runnable), runnable)
    name = f"{registry}/a/tiny"
    Pusher(Layout(result.layout), Reference.parse(name), SilentProgress()).push(("1.0",))
    podman("pull", "-q", "--tls-verify=false", f"{name}@{result.digest}")
    assert podman(*CONFINED, f"{name}@{result.digest}") == GREETING.decode()


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
