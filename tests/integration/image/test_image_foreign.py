"""Images upon somebody else's base."""

from __future__ import annotations

import pytest
from image_debs import make_deb
from image_packages import Item, lock_of, make_conda, members

from assembler.errors import ImageError
from assembler.image.compression import Codec
from assembler.image.foreign import read_base
from assembler.image.layout import Layout
from assembler.image.request import Options
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


def test_its_layers_come_first_as_they_are(make_image, channel, base, tmp_path):
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


def test_a_c_library_that_is_too_old(make_image, channel, base):
    make_conda(channel, "modern", [Item("lib/modern", b"x")], depends=["__glibc >=2.38"])
    found = read_base(str(base.layout), "amd64")
    with pytest.raises(ImageError, match=r"needs glibc 2\.38, but the base brings 2\.36"):
        make_image(lock_of(channel), channel, options=Options(base=found))


def test_a_prefix_below_one_of_its_links(make_image, channel, base, image):
    found = read_base(f"{base.layout}@{base.digest}", "amd64")
    settings = image.model_copy(update={"prefix": "/lib/atom"})
    with pytest.raises(ImageError, match="lies below /lib, a symbolic link of the base"):
        make_image(lock_of(channel), channel, settings=settings, options=Options(base=found))


def test_bases_that_are_none(base, tmp_path):
    with pytest.raises(ImageError, match="0 of its images fit"):
        read_base(f"{base.layout}:nowhere", "amd64")
    with pytest.raises(ImageError, match="0 of its images fit"):
        read_base(str(tmp_path / "nowhere"), "amd64")
    with pytest.raises(ImageError, match="it is for linux/amd64"):
        read_base(str(base.layout), "arm64")
    blob = Layout(base.layout).blob(base.layers[0].digest)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    with pytest.raises(ImageError, match="damaged"):
        read_base(str(base.layout), "amd64")
