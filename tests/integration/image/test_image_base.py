"""The Debian base: merged, slimmed, configured, recorded, without dpkg or root."""

from __future__ import annotations

import shutil

import pytest
from image_debs import make_base, make_deb
from image_packages import Item, layers, lock_of, members

from assembler.errors import ImageError, SourceUnavailableError
from assembler.image.base import User, build_tree
from assembler.image.debian import read_deb, read_slimming
from assembler.sources.store import Store

LIBRARY = "usr/lib/x86_64-linux-gnu"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def base_layer(make_image, channel, store):
    result = make_image(lock_of(channel, base=make_base(store)), channel)
    assert result.layers[0].name == "base"
    return members(next(layers(result.layout)))


def test_nothing_lies_below_a_merged_directory(base_layer):
    found = {info.name: info for info, _ in base_layer}
    assert {name: found[name].linkname for name in ("bin", "sbin", "lib", "lib64")} == {
        "bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64",
    }  # fmt: skip
    assert f"{LIBRARY}/libold.so" in found
    assert found["usr/lib64/ld-linux-x86-64.so.2"].issym()
    links = [name for name, info in found.items() if info.issym()]
    assert not any(name.startswith(f"{link}/") for name in found for link in links)


def test_entries_are_sorted_whole_and_root_s(base_layer):
    names = [info.name.encode() for info, _ in base_layer]
    assert names == sorted(names)
    assert len(names) == len(set(names))
    homes = [info for info, _ in base_layer if info.uid]
    assert [(info.name, info.uid, info.gid) for info in homes] == [("home/nonroot", 65532, 65532)]
    assert len({info.mtime for info, _ in base_layer}) == 1
    assert not any(info.mode & 0o6000 for info, _ in base_layer)


def test_what_stays_and_what_goes(base_layer):
    found = {info.name: data for info, data in base_layer}
    for kept in (
        f"{LIBRARY}/gconv/UTF-16.so", "usr/share/doc/base-files/copyright", "usr/sbin/ldconfig",
        "usr/lib/locale/C.utf8/LC_CTYPE", "usr/lib/os-release", "etc/os-release",
    ):  # fmt: skip
        assert kept in found
    for cut in (
        f"{LIBRARY}/gconv/EBCDIC-US.so", "usr/share/doc/base-files/README", "usr/bin/getent",
        "usr/share/man", "usr/sbin/update-ca-certificates", "usr/share/ca-certificates",
        "usr/share/doc/libc6", "usr/share/base-files",
    ):  # fmt: skip
        assert cut not in found
    assert found[f"{LIBRARY}/libtwin.so"] == b"libc"


def test_what_scripts_would_have_made(base_layer):
    found = {info.name: (info, data) for info, data in base_layer}
    assert found["etc/ssl/certs/ca-certificates.crt"][1] == b"-A-\n-B-\n"
    assert b"nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n" in found["etc/passwd"][1]
    assert b"nonroot:x:65532:\n" in found["etc/group"][1]
    assert found["etc/nsswitch.conf"][1] == b"hosts: files dns\npasswd: files\n"
    assert found["tmp"][0].mode == found["var/tmp"][0].mode == 0o1777
    assert found["root"][0].mode == 0o700


def test_packages_are_recorded_with_the_files_that_are_there(base_layer):
    found = {info.name: data for info, data in base_layer}
    assert found["var/lib/dpkg/status.d/libc6"].startswith(b"Package: libc6\nVersion: 1.0-1\n")
    sums = found["var/lib/dpkg/status.d/libc6.md5sums"].decode()
    assert f"{LIBRARY}/libc.so.6" in sums
    assert "lib/x86_64-linux-gnu/libold.so" in sums
    assert "EBCDIC" not in sums


def test_two_packages_with_one_path(store):
    pins = [make_deb(store, name, [Item("etc/x", name.encode())]) for name in ("one", "two")]
    packages = [read_deb(store.path(pin.sha256), pin.label) for pin in pins]
    with pytest.raises(ImageError, match="both hold etc/x"):
        build_tree(packages, User(1, 1, "/home/x"))


def test_a_device_in_a_package(store):
    pin = make_deb(store, "odd", [Item("dev/null", kind="device")])
    with pytest.raises(ImageError, match="device or a pipe"):
        build_tree([read_deb(store.path(pin.sha256), "odd")], User(1, 1, "/home/x"))


def test_a_base_package_that_rotted(make_image, channel, store):
    pins = make_base(store)
    path = store.path(pins[0].sha256)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-10] + b"0123456789")
    with pytest.raises(ImageError, match=r"base-files 1\.0-1 was damaged and has been removed"):
        make_image(lock_of(channel, base=pins), channel)
    assert not path.exists()


def test_a_base_package_that_is_not_there_anywhere(make_image, channel, store, monkeypatch):
    pins = make_base(store)
    shutil.rmtree(store.root)
    monkeypatch.setattr(
        "assembler.image.writer.DebianArchive.download",
        lambda archive, wanted, store: (_ for _ in ()).throw(
            SourceUnavailableError("apt could not download", remedy="check the network")
        ),
    )
    with pytest.raises(SourceUnavailableError):
        make_image(lock_of(channel, base=pins), channel)


def test_root_is_no_user():
    with pytest.raises(ImageError, match="would run as root"):
        User.of("0:0", "/root")


def test_every_rule_has_a_reason():
    assert all(rule.reason and rule.drop for rule in read_slimming().rules)
    assert len({rule.id for rule in read_slimming().rules}) == len(read_slimming().rules)
