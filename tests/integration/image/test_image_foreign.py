"""Images upon somebody else's base."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import socket as sockets
import subprocess
import tarfile
import time

import pytest
from image_debs import make_deb
from image_packages import Item, lock_of, make_conda, members, need

from assembler.errors import ConfigError, ImageError
from assembler.image import survey
from assembler.image.archive import write_archive
from assembler.image.compression import Codec
from assembler.image.connection import Connection
from assembler.image.documents import INDEX, index
from assembler.image.layout import Layout
from assembler.image.registry import Pusher, Reference
from assembler.image.request import Options
from assembler.progress import SilentProgress
from assembler.sources.store import Store

LIBC = b"\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n\0"


@pytest.fixture
def base(make_image, tmp_path, image):
    """A base of two layers, gzip, with a variable of its own."""
    store = Store(tmp_path / "store")
    pin = make_deb(store, "libc6", [Item("usr/lib/x86_64-linux-gnu/libc.so.6", LIBC, 0o755)])
    channel = tmp_path / "base-channel"
    make_conda(channel, "tools", [Item("bin/tool", b"tool", 0o755)])
    settings = image.model_copy(
        update={"prefix": "/opt/tools", "env": {"FROM_BASE": "1", "LANG": "base"}}
    )
    return make_image(
        lock_of(channel, base=(pin,)), channel, tmp_path / "base", settings=settings,
        options=Options(codec=Codec("gzip", 6)),
    )  # fmt: skip


@pytest.fixture
def read_base(tmp_path):
    """Read a base with a cache of the test's own."""

    def read(text, architecture="amd64"):
        return survey.read_base(text, architecture, tmp_path / "cache", SilentProgress())

    return read


def test_its_layers_come_first_as_they_are(make_image, channel, base, tmp_path, read_base):
    found = read_base(f"oci:{base.layout}:latest", "amd64")
    assert found.glibc == "2.36"
    assert {"bin", "lib", "lib64", "sbin"} <= found.links
    lock = lock_of(channel)
    result = make_image(lock, channel, options=Options(base=found, budget=4))
    assert [layer.digest for layer in result.layers[:2]] == [layer.digest for layer in base.layers]
    assert len(result.layers) <= 4
    zstd = Layout(result.layout).blob(result.layers[2].digest).read_bytes()
    first = members(b"".join(Codec().expand([zstd])))
    homes = [(info.name, info.uid) for info, _ in first if info.name.startswith("home")]
    assert homes == [("home", 0), ("home/nonroot", 65532)]
    layout = Layout(result.layout)
    manifest = layout.document(result.digest)
    assert manifest["annotations"]["org.opencontainers.image.base.digest"] == base.digest
    assert [layer["mediaType"].rpartition("+")[2] for layer in manifest["layers"]][:3] == [
        "gzip", "gzip", "zstd",
    ]  # fmt: skip
    config = layout.document(manifest["config"]["digest"])
    lower = Layout(base.layout).document(base.digest)
    lower = Layout(base.layout).document(lower["config"]["digest"])
    assert config["rootfs"]["diff_ids"][:2] == lower["rootfs"]["diff_ids"]
    assert len(config["history"]) == len(config["rootfs"]["diff_ids"]) == len(result.layers)
    variables = dict(word.split("=", 1) for word in config["config"]["Env"])
    assert variables["FROM_BASE"] == "1"
    assert variables["LANG"] == "C.UTF-8"
    assert variables["PATH"].startswith("/opt/atom/bin:/opt/tools/bin:")
    assert make_image(lock, channel, options=Options(base=found, budget=4)).up_to_date


def test_a_c_library_that_is_too_old(make_image, channel, base, read_base):
    make_conda(channel, "modern", [Item("lib/modern", b"x")], depends=["__glibc >=2.38"])
    found = read_base(str(base.layout), "amd64")
    with pytest.raises(ImageError, match=r"needs glibc 2\.38, but the base brings 2\.36"):
        make_image(lock_of(channel), channel, options=Options(base=found))


def test_a_prefix_below_one_of_its_links(make_image, channel, base, image, read_base):
    found = read_base(f"{base.layout}@{base.digest}", "amd64")
    settings = image.model_copy(update={"prefix": "/lib/atom"})
    with pytest.raises(ImageError, match="lies below /lib, a symbolic link of the base"):
        make_image(lock_of(channel), channel, settings=settings, options=Options(base=found))


def test_bases_that_are_none(base, tmp_path, read_base):
    with pytest.raises(ImageError, match="0 of its images fit"):
        read_base(f"{base.layout}:nowhere", "amd64")
    with pytest.raises(ConfigError, match="there is no image at"):
        read_base(str(tmp_path / "nowhere"), "amd64")
    with pytest.raises(ImageError, match="it is for linux/amd64"):
        read_base(str(base.layout), "arm64")
    blob = Layout(base.layout).blob(base.layers[0].digest)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    with pytest.raises(ImageError, match="damaged"):
        read_base(str(base.layout), "amd64")


def pack(layout, place):
    with place.open("wb") as sink:
        write_archive(Layout(layout), sink, SilentProgress())
    return place


def facts(found):
    """Return what a base is, without where its blobs lie."""
    return (found.digest, found.layers, found.diff_ids, found.env, found.links, found.glibc,
            found.sizes)  # fmt: skip


@pytest.mark.parametrize("form", ["{}", "oci-archive:{}", "{}:latest", "{}@{digest}"])
def test_an_archive_is_the_same_base(make_image, channel, base, tmp_path, read_base, form):
    archive = pack(base.layout, tmp_path / "base.tar")
    found = read_base(form.format(archive, digest=base.digest))
    assert facts(found) == facts(read_base(str(base.layout)))
    lock = lock_of(channel)
    one = make_image(lock, channel, tmp_path / "one", options=Options(base=found))
    two = make_image(lock, channel, tmp_path / "two",
                     options=Options(base=read_base(str(base.layout))))  # fmt: skip
    assert one.digest == two.digest


def test_an_archive_s_layers_are_copied_once(base, tmp_path, read_base):
    archive = pack(base.layout, tmp_path / "base.tar")
    folder = read_base(str(archive)).layout / "blobs" / "sha256"
    before = {path: path.stat().st_ino for path in folder.iterdir()}
    assert len(before) == len(base.layers) + 2
    read_base(str(archive))
    assert {path: path.stat().st_ino for path in folder.iterdir()} == before
    blob = folder / base.layers[0].digest[7:]
    data = bytearray(blob.read_bytes())
    data[10] ^= 1
    blob.write_bytes(data)
    read_base(str(archive))
    assert Layout(folder.parent.parent).has(base.layers[0].digest, len(data))
    data[10] ^= 1
    assert blob.read_bytes() == data


def test_archives_that_are_none(base, tmp_path, read_base):
    with pytest.raises(ConfigError, match=r"there is no image at nowhere\.tar"):
        read_base("nowhere.tar")
    (tmp_path / "text.tar").write_text("no tar")
    with pytest.raises(ImageError, match="no plain tar"):
        read_base(str(tmp_path / "text.tar"))
    archive = pack(base.layout, tmp_path / "base.tar")
    with pytest.raises(ImageError, match="0 of its images fit"):
        read_base(f"{archive}:other")
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 3])
    with pytest.raises(ImageError, match="is not a usable image"):
        read_base(str(archive))
    damaged = bytearray(whole)
    at = whole.index(Layout(base.layout).blob(base.layers[0].digest).read_bytes()) + 20
    damaged[at] ^= 1
    archive.write_bytes(damaged)
    with pytest.raises(ImageError, match=f"the blob {base.layers[0].digest[:19]} is damaged"):
        read_base(str(archive))
    with tarfile.open(archive, "w") as tar:
        info = tarfile.TarInfo("manifest.json")
        tar.addfile(info)
    with pytest.raises(ImageError, match="skopeo copy docker-archive:FILE"):
        read_base(str(archive))


def test_a_base_without_the_c_library(make_image, tmp_path, image, read_base):
    channel = tmp_path / "base-channel"
    make_conda(channel, "tools", [Item("bin/tool", b"tool", 0o755)])
    lower = make_image(lock_of(channel), channel, tmp_path / "base")
    with pytest.raises(ImageError, match="none of its layers holds glibc"):
        read_base(str(lower.layout))


def test_layers_are_looked_through_once(base, read_base, monkeypatch):
    first = read_base(str(base.layout))
    monkeypatch.setattr(survey, "_scan", lambda *arguments: pytest.fail("read again"))
    assert facts(read_base(str(base.layout))) == facts(first)


def test_an_index_of_platforms(base, read_base, tmp_path):
    layout = Layout(base.layout)
    (entry,) = layout.entries()
    other = {**entry, "platform": {"os": "linux", "architecture": "arm64"}}
    data = index([other, {key: entry[key] for key in ("mediaType", "digest", "size", "platform")}])
    name = hashlib.sha256(data).hexdigest()
    (layout.blobs / name).write_bytes(data)
    listed = {"mediaType": INDEX, "digest": f"sha256:{name}", "size": len(data)}
    (layout.path / "index.json").write_bytes(index([listed]))
    assert read_base(str(base.layout)).digest == base.digest
    with pytest.raises(ImageError, match="nothing for linux/riscv64"):
        read_base(str(base.layout), "riscv64")


@pytest.mark.engine
def test_a_registry_gives_the_same_base_by_digest(
    make_image, channel, base, tmp_path, read_base, registry
):
    Pusher(Layout(base.layout), Reference.parse(f"{registry}/a/base:1"), SilentProgress()).push()
    reference = f"{registry}/a/base@{base.digest}"
    found = read_base(reference)
    assert facts(found) == facts(read_base(str(base.layout)))
    assert facts(read_base(f"docker://{registry}/a/base:1@{base.digest}")) == facts(found)
    result = make_image(lock_of(channel), channel, options=Options(base=found))
    assert [layer.digest for layer in result.layers[:2]] == [layer.digest for layer in base.layers]
    shutil.rmtree(tmp_path / "registry" / "docker" / "registry" / "v2" / "blobs")
    assert facts(read_base(reference)) == facts(found)  # what is in the cache is not asked for
    shutil.rmtree(found.layout)
    with pytest.raises(ImageError, match="has no sha256:"):
        read_base(reference)


@pytest.mark.engine
def test_an_index_in_a_registry(base, read_base, registry):
    """What a tag of Docker Hub names is an index of platforms, and so is its digest."""
    where = Reference.parse(f"{registry}/a/base")
    Pusher(Layout(base.layout), where, SilentProgress()).push(("1",))
    (entry,) = Layout(base.layout).entries()
    plain = {key: entry[key] for key in ("mediaType", "digest", "size", "platform")}
    data = index([{**plain, "platform": {"os": "windows", "architecture": "amd64"}}, plain])
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    Connection(where).ask("PUT", "/manifests/all", expect=(201,), data=data,
                          headers={"Content-Type": INDEX})  # fmt: skip
    for _ in range(2):
        assert read_base(f"{registry}/a/base@{digest}").digest == base.digest
    with pytest.raises(ImageError, match="is a tag") as caught:
        read_base(f"{registry}/a/base:all")
    assert caught.value.remedy.endswith(digest)
    with pytest.raises(ImageError, match="nothing for linux/arm64"):
        read_base(f"{registry}/a/base@{digest}", "arm64")


@pytest.mark.engine
def test_a_tag_is_refused_with_its_digest(base, read_base, registry):
    Pusher(Layout(base.layout), Reference.parse(f"{registry}/a/base:1"), SilentProgress()).push()
    with pytest.raises(ImageError, match="is a tag, which may name another") as caught:
        read_base(f"{registry}/a/base:1")
    assert caught.value.remedy.endswith(f"{registry}/a/base@{base.digest}")
    with pytest.raises(ImageError, match="the registry has no latest"):
        read_base(f"{registry}/a/base")


@pytest.mark.engine
def test_an_image_of_skopeo_s_own_making(base, read_base, registry, tmp_path):
    """Docker's media types, which most registries' images have, and the layout skopeo writes."""
    skopeo = need("skopeo")
    for source, target in (
        (f"oci:{base.layout}:latest", f"docker://{registry}/b/base:2"),
        (f"docker://{registry}/b/base:2", f"oci:{tmp_path / 'copied'}:3"),
    ):
        command = [skopeo, "--insecure-policy", "copy", "-q", "--src-tls-verify=false",
                   "--dest-tls-verify=false"]  # fmt: skip
        if target.startswith("docker"):
            command += ["--format", "v2s2"]
        subprocess.run([*command, source, target], check=True, capture_output=True)
    facts = subprocess.run(
        [skopeo, "inspect", "--tls-verify=false", f"docker://{registry}/b/base:2"],
        check=True, capture_output=True,
    )  # fmt: skip
    digest = json.loads(facts.stdout)["Digest"]
    found = read_base(f"{registry}/b/base@{digest}")
    assert found.digest == digest
    assert found.layers[0]["mediaType"].startswith("application/vnd.docker")
    assert found.diff_ids == read_base(str(base.layout)).diff_ids
    copied = read_base(f"oci:{tmp_path / 'copied'}:3")
    assert copied.diff_ids == found.diff_ids


def test_nothing_is_pushed_to_a_digest(base):
    where = Reference.parse(f"localhost/a@{base.digest}")
    with pytest.raises(ImageError, match="cannot be pushed to the digest"):
        Pusher(Layout(base.layout), where, SilentProgress())


@pytest.fixture
def closed_registry(registry, tmp_path):
    """The registry once more, with a login: name `user`, word `secret` (bcrypt, as it wants)."""
    (tmp_path / "htpasswd").write_text(
        "user:$2b$04$rrxq.CRwCd0qUwqhVkHmTOCG6XELWRm4lw8996ihClODs4Vd.6w3G\n"
    )
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = (tmp_path / "registry.yml").read_text().replace(registry, f"127.0.0.1:{port}")
    config += f"auth: {{htpasswd: {{realm: closed, path: {tmp_path / 'htpasswd'}}}}}\n"
    (tmp_path / "closed.yml").write_text(config)
    with (tmp_path / "closed.log").open("w") as log:
        process = subprocess.Popen(
            [need("docker-registry"), "serve", tmp_path / "closed.yml"], stdout=log, stderr=log
        )
    try:
        for _ in range(100):
            with sockets.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.engine
def test_a_login_from_docker_s_config(base, closed_registry, tmp_path, read_base, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    reference = f"{closed_registry}/a/base@{base.digest}"

    def login(word):
        auth = base64.b64encode(f"user:{word}".encode()).decode()
        config = tmp_path / "home" / ".docker" / "config.json"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps({"auths": {closed_registry: {"auth": auth}}}))

    with pytest.raises(ImageError, match="it asks for a login") as caught:
        read_base(reference)
    assert f"docker login {closed_registry}" in caught.value.remedy
    login("wrong")
    with pytest.raises(ImageError, match="does not take the login"):
        read_base(reference)
    login("secret")
    where = Reference.parse(f"{closed_registry}/a/base:1")
    assert Pusher(Layout(base.layout), where, SilentProgress()).push().digests == (base.digest,)
    assert facts(read_base(reference)) == facts(read_base(str(base.layout)))
