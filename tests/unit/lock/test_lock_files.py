"""Three renderings of one model: what goes in comes out, at any channel path."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from assembler.channel.location import channel_url, package_url
from assembler.errors import LockError
from assembler.lock import condalock
from assembler.lock.condalock import parse
from assembler.lock.explicit import explicit_bytes
from assembler.lock.files import read_lock, render, write_lock
from assembler.lock.model import LOCAL_CHANNEL, Lock, LockedPackage, gfx_targets_of, split_spec
from assembler.lock.pixi import pixi_bytes, read_pixi
from tests.data_stack import FakeArchive

AWKWARD = ["ch", "my channel", "a+b", "50%", "%41", "#1", "é漢", " -rf", "$HOME", "a:b", "q'\"&"]

word = st.from_regex(r"[a-z][a-z0-9_]{0,6}(-[a-z0-9]{1,4})?", fullmatch=True)
version = st.from_regex(r"[0-9]{1,2}(\.[0-9]{1,3}){0,2}(\+cpu|rc1|\.post1)?", fullmatch=True)
build = st.from_regex(r"(py311_)?h[0-9a-f]{7}_[0-9]{1,2}", fullmatch=True)
spec_rest = st.sampled_from(["", ">=1", ">=1,<2.0a0", "1.2.*", "3.11.* *_cp311", "=*=gfx942*", "*"])
spec = st.builds(lambda name, rest: f"{name} {rest}".rstrip(), word, spec_rest)
digest = st.integers(0, 2**256 - 1)


@st.composite
def package(draw: st.DrawFn, name: str) -> LockedPackage:
    subdir = draw(st.sampled_from(["noarch", "linux-64"]))
    parts = name, draw(version), draw(build)
    file = "-".join(parts) + draw(st.sampled_from([".conda", ".tar.bz2"]))
    remote = draw(st.booleans()) and draw(st.booleans())
    url = f"https://conda.example.org/stable/{subdir}/{file}" if remote else None
    return LockedPackage(
        name=parts[0],
        version=parts[1],
        build=parts[2],
        build_number=draw(st.integers(0, 1000)),
        subdir=subdir,
        file=file,
        path=f"{subdir}/{file}",
        sha256=f"{draw(digest):064x}",
        md5=f"{draw(digest) % 2**128:032x}",
        size=draw(st.integers(0, 10**10)),
        depends=tuple(draw(st.lists(spec, max_size=4))),
        license=draw(st.sampled_from(["", "MIT", "0BSD", "Apache-2.0 AND (MIT OR ISC)", "no"])),
        constrains=tuple(draw(st.lists(spec, max_size=2))),
        timestamp=draw(st.none() | st.integers(10**12, 2 * 10**12)),
        noarch=draw(st.sampled_from(["python", "generic"])) if subdir == "noarch" else None,
        site_packages=draw(st.sampled_from([None, "lib/python3.11/site-packages"])),
        url=url,
    )


@st.composite
def locks(draw: st.DrawFn) -> Lock:
    names = draw(st.lists(word, min_size=1, max_size=6, unique=True))
    packages = tuple(draw(package(name)) for name in names)
    archive = FakeArchive(draw(st.sampled_from(["1", "1:2.3+deb13u1~bpo"])))
    base = draw(st.lists(st.sampled_from(["libc6", "libstdc++6", "zlib1g"]), unique=True))
    local = [package.name for package in packages if package.url is None]
    return Lock(
        profile=draw(st.sampled_from(["cpu", "rocm"])),
        platform="linux-64",
        specs=tuple(draw(st.lists(spec, min_size=1, max_size=3))),
        channels=draw(
            st.sampled_from([(LOCAL_CHANNEL,), (LOCAL_CHANNEL, "https://conda.example.org/stable")])
        ),
        packages=packages,
        base=archive.resolve(base),
        virtual_packages=draw(
            st.sampled_from([{}, {"__glibc": "2.36", "__archspec": "1 x86_64", "__unix": "0"}])
        ),
        gfx_targets=gfx_targets_of(names),
        input_keys={name: f"{draw(digest):064x}" for name in local if draw(st.booleans())},
        suite="trixie",
        base_names=tuple(sorted(base)),
    )


# No shrinking: a failing example of a few packages is small enough, and shrinking takes minutes.
common = settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@common
@given(lock=locks())
def test_conda_lock_yml_reads_back_the_same(lock: Lock) -> None:
    data = condalock.lock_bytes(lock)
    assert parse(data, "x") == lock
    assert condalock.lock_bytes(parse(data, "x")) == data


@common
@given(lock=locks(), name=st.sampled_from(AWKWARD))
def test_pixi_lock_reads_back_the_same_set_at_any_place(
    tmp_path: Path, lock: Lock, name: str
) -> None:
    channel = tmp_path / name
    path = tmp_path / "pixi.lock"
    path.write_bytes(pixi_bytes(lock))
    assert str(tmp_path).encode() not in path.read_bytes()
    environment = read_pixi(path, channel).default_environment()
    assert environment
    records = environment.conda_repodata_records_for_platform(environment.platforms()[0])
    assert records
    found = {
        (
            record.name.normalized, str(record.version), str(record.build), record.build_number,
            record.subdir, record.sha256.hex(), record.md5.hex(), record.size,
            tuple(record.depends), tuple(record.constrains), unquote(record.url),
        )
        for record in records
        if record.sha256 and record.md5
    }  # fmt: skip
    assert found == {
        (
            p.name, p.version, p.build, p.build_number, p.subdir, p.sha256, p.md5, p.size,
            p.depends, p.constrains, p.url or unquote(package_url(channel, p.path)),
        )
        for p in lock.packages
    }  # fmt: skip


@common
@given(lock=locks())
def test_explicit_txt_names_the_same_set(lock: Lock) -> None:
    lines = explicit_bytes(lock).decode().splitlines()
    assert "# platform: linux-64" in lines
    entries = lines[lines.index("@EXPLICIT") + 1 :]
    found = set()
    for line in entries:
        place, _, sha256 = line.partition("#sha256:")
        found.add((place.removeprefix("$ATOM_CHANNEL/"), sha256))
    assert found == {(p.url or p.path, p.sha256) for p in lock.packages}
    assert len(entries) == len(lock.packages)


@pytest.mark.parametrize("name", AWKWARD)
def test_a_channel_path_has_one_url(tmp_path: Path, name: str) -> None:
    channel = tmp_path / name
    url = channel_url(channel)
    assert unquote(urlsplit(url).path) == str(channel)
    assert not re.search(r"[ #\"'&]|%(?![0-9A-F]{2})", url)
    assert channel_url(tmp_path / "x" / ".." / name) == url
    channel.mkdir()
    here = Path.cwd()
    try:
        os.chdir(tmp_path)
        assert channel_url(Path(name)) == url
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("python", ("python", "")),
        ("Python >=3.11,<4", ("python", ">=3.11,<4")),
        ("python>=3.9", ("python", ">=3.9")),
        ("conda-forge::a[build_number=1]", ("a", "[build_number=1]")),
        ("a==1=b_0", ("a", "==1=b_0")),
    ],
)
def test_a_specification_splits_at_its_name(text: str, parts: tuple[str, str]) -> None:
    assert split_spec(text) == parts


def test_writing_twice_changes_nothing_and_a_change_is_one_package(
    lock: Lock, tmp_path: Path
) -> None:
    assert set(write_lock(lock, tmp_path)) == set(render(lock))
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert write_lock(lock, tmp_path) == ()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    assert read_lock(tmp_path) == read_lock(tmp_path / "conda-lock.yml") == lock


def test_conda_lock_itself_reads_and_renders_the_file(lock: Lock, tmp_path: Path) -> None:
    write_lock(lock, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "conda_lock", "render", "-k", "explicit", "-p", "linux-64",
         "--filename-template", "out-{platform}.lock", "conda-lock.yml"],
        cwd=tmp_path,
        env={**os.environ, "ATOM_CHANNEL": "/srv/channel"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rendered = (tmp_path / "out-linux-64.lock").read_text().splitlines()
    start = rendered.index("@EXPLICIT") + 1
    assert {line for line in rendered[start:] if line} == {
        f"file:///srv/channel/{package.path}#{package.md5}" for package in lock.packages
    }


def test_the_content_hash_is_conda_locks_own(lock: Lock, tmp_path: Path) -> None:
    from conda_lock.content_hash import compute_content_hashes
    from conda_lock.src_parser import make_lock_spec
    from conda_lock.virtual_package import virtual_package_repo_from_specification

    write_lock(lock, tmp_path)
    request = make_lock_spec(src_files=[tmp_path / "environment.yml"], mapping_url="")
    assumed = virtual_package_repo_from_specification(tmp_path / "virtual-packages.yml")
    document = yaml.safe_load((tmp_path / "conda-lock.yml").read_text())
    assert document["metadata"]["content_hash"] == compute_content_hashes(request, assumed)


# -- hostile files ---------------------------------------------------------------------------------


def edit(data: bytes, old: str, new: str, count: int = 1) -> bytes:
    assert old.encode() in data
    return data.replace(old.encode(), new.encode(), count)


def drop_line(data: bytes, start: str) -> bytes:
    lines = data.decode().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(start)]
    assert len(kept) < len(lines)
    return "".join(kept).encode()


def duplicated(data: bytes) -> bytes:
    document = yaml.safe_load(data)
    document["package"].append(document["package"][0])
    return yaml.safe_dump(document, sort_keys=False).encode()


def of_platform(data: bytes, platform: str) -> bytes:
    return data.replace(b"- linux-64", b"- " + platform.encode())


HOSTILE = {
    "empty": (lambda d: b"", "is empty"),
    "blank": (lambda d: b"\n\n", "is empty"),
    "bom": (lambda d: b"\xef\xbb\xbf" + d, "byte order mark"),
    "crlf": (lambda d: d.replace(b"\n", b"\r\n"), "Windows line ends"),
    "truncated": (lambda d: d[: len(d) // 2], "."),
    "truncated in a line": (lambda d: d[: d.index(b"- name: torch") + 9], "."),
    "not yaml": (lambda d: b"{" + d, "not valid YAML"),
    "not utf-8": (lambda d: d + b"\xff\xfe", "not valid YAML"),
    "a list": (lambda d: b"- 1\n", "is not a lock"),
    "html": (lambda d: b"<html></html>\n", "is not a lock"),
    "deep": (lambda d: b"[" * 50000, "."),
    "no version": (lambda d: drop_line(d, "version:"), "version None"),
    "next version": (lambda d: edit(d, "version: 1", "version: 2"), "version 2, not 1"),
    "newer format": (
        lambda d: edit(d, "assembler.format: '1'", "assembler.format: '2'"),
        "has format 2, and this assembler reads up to 1; update the assembler",
    ),
    "odd format": (lambda d: edit(d, "format: '1'", "format: one"), "has the format 'one'"),
    "conda-lock's own": (lambda d: drop_line(d, "    assembler."), "was not written by"),
    "no metadata": (lambda d: b"version: 1\npackage: []\n", "has no metadata|was not written by"),
    "another platform": (lambda d: of_platform(d, "osx-arm64"), "is for osx-arm64"),
    "an entry of another platform": (
        lambda d: edit(d, "platform: linux-64", "platform: win-64"),
        "is for win-64, not linux-64",
    ),
    "duplicate": (duplicated, "the package aiter-device-gfx942 twice"),
    "no sha256": (lambda d: re.sub(rb"\n    sha256: .*", b"", d, count=1), "has no sha256"),
    "md5 only": (lambda d: re.sub(rb"\n    sha256: .*", b"", d), "has no sha256"),
    "short sha256": (lambda d: re.sub(rb"(sha256: .{10}).*", rb"\1", d), "has no sha256"),
    "no md5": (lambda d: re.sub(rb"\n    md5: .*", b"", d, count=1), "has no md5"),
    "another hash": (
        lambda d: re.sub(rb"(    sha256: ).*", rb"\g<1>" + b"f" * 64, d, count=1),
        "was edited",
    ),
    "another version": (lambda d: edit(d, "  version: '2.0'", "  version: '2.1'"), "is called"),
    "another file": (lambda d: edit(d, "zlib-2.0", "zlib-3.0"), "is called zlib-2.0"),
    "a path upwards": (
        lambda d: edit(d, "$ATOM_CHANNEL/noarch/zlib", "$ATOM_CHANNEL/../noarch/zlib"),
        "neither below",
    ),
    "a local path": (
        lambda d: edit(d, "file://$ATOM_CHANNEL/noarch/zlib", "file:///etc/noarch/zlib"),
        "neither below",
    ),
    "a fact gone": (lambda d: drop_line(d, "    assembler.package.zlib"), "lacks package.zlib"),
    "a fact of no sense": (
        lambda d: re.sub(rb"(assembler.package.zlib: ).*", rb"\1'[]'", d),
        "is malformed",
    ),
    "packages no list": (lambda d: d[: d.index(b"package:\n")] + b"package: 3\n", "no packages"),
    "a package no mapping": (
        lambda d: d[: d.index(b"package:\n")] + b"package:\n- 3\n",
        "is malformed",
    ),
    "pip": (lambda d: edit(d, "manager: conda", "manager: pip"), "is not a conda package"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_lock_is_one_sentence(lock: Lock, tmp_path: Path, what: str) -> None:
    change, words = HOSTILE[what]
    path = tmp_path / "conda-lock.yml"
    path.write_bytes(change(condalock.lock_bytes(lock)))
    with pytest.raises(LockError, match=words) as caught:
        read_lock(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value) or "twice" in str(caught.value)


def test_no_lock_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"there is no lock at .*run `assembler lock`"):
        read_lock(tmp_path)
