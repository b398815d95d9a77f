"""Debian packages through the machine's apt, from an archive of files made on the spot."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest_sources import entry

from assembler.errors import MissingToolError, SourceUnavailableError
from assembler.progress import SilentProgress
from assembler.sources.debian import DebianArchive
from assembler.sources.fetch import FetchResult, fetch
from assembler.sources.pinning import Pinner
from assembler.sources.pins import Pin, read_pins
from assembler.sources.store import Store
from assembler.workspace import Workspace

pytestmark = pytest.mark.skipif(not shutil.which("apt-get"), reason="apt is not on this machine")

Project = Callable[..., Workspace]


class Archive:
    """A Debian archive in a folder; apt only reads indexes, so a package is any bytes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.packages: dict[tuple[str, str], tuple[bytes, str]] = {}

    def put(self, name: str, version: str, depends: str = "") -> None:
        self.packages[name, version] = (f"{name} {version}".encode(), depends)
        self.write()

    def drop(self, name: str, version: str) -> None:
        del self.packages[name, version]
        shutil.rmtree(self.root / "pool")
        self.write()

    @staticmethod
    def file(name: str, version: str) -> str:
        return f"{name}_{version.rpartition(':')[2]}_amd64.deb"

    def write(self) -> None:
        stanzas = []
        for (name, version), (data, depends) in self.packages.items():
            path = f"pool/main/{name}/{self.file(name, version)}"
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_bytes(data)
            stanzas.append(
                f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n"
                "Maintainer: x <x@example.org>\nDescription: x\n"
                + (f"Depends: {depends}\n" if depends else "")
                + f"Filename: {path}\nSize: {len(data)}\n"
                f"SHA256: {hashlib.sha256(data).hexdigest()}\n"
            )
        folder = self.root / "dists" / "trixie"
        index = folder / "main" / "binary-amd64" / "Packages"
        index.parent.mkdir(parents=True, exist_ok=True)
        index.write_text("\n".join(stanzas))
        digest, size = hashlib.sha256(index.read_bytes()).hexdigest(), index.stat().st_size
        (folder / "Release").write_text(
            "Origin: Test\nSuite: trixie\nCodename: trixie\nArchitectures: amd64\n"
            "Components: main\nDate: Mon, 01 Dec 2025 00:00:00 UTC\n"
            f"SHA256:\n {digest} {size} main/binary-amd64/Packages\n"
        )


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    one = Archive(tmp_path / "archive")
    one.put("libc6", "2.41-12")
    one.put("zlib1g", "1:1.3-1", "libc6 (>= 2.38)")
    one.put("zlib1g", "1:1.3-2", "libc6 (>= 2.38), tool | other-tool")
    sources = tmp_path / "machine.list"
    # The machine's own suite is another one, as in real life.
    sources.write_text(f"deb [trusted=yes] file:{one.root} bookworm main contrib\n")
    monkeypatch.setenv("ASSEMBLER_APT_SOURCES", str(sources))
    return one


def apt(tmp_path: Path) -> DebianArchive:
    return DebianArchive("trixie", "amd64", tmp_path / "apt state")


def test_names_are_resolved_and_downloaded(tmp_path: Path, archive: Archive) -> None:
    debian = apt(tmp_path)
    pins = debian.resolve(["zlib1g", "libc6"])
    assert [(pin.name, pin.version, pin.file) for pin in pins] == [
        ("zlib1g", "1:1.3-2", "zlib1g_1.3-2_amd64.deb"),
        ("libc6", "2.41-12", "libc6_2.41-12_amd64.deb"),
    ]
    store = Store(tmp_path / "store")
    debian.download(pins, store)
    assert store.path(pins[0].sha256).read_bytes() == b"zlib1g 1:1.3-2"
    assert store.path(pins[1].sha256).read_bytes() == b"libc6 2.41-12"
    assert debian.unmet(["zlib1g", "libc6"]) == {"zlib1g": ("tool | other-tool",)}
    assert debian.unmet(["zlib1g"]) == {"zlib1g": ("libc6", "tool | other-tool")}
    with pytest.raises(SourceUnavailableError, match="no package 'nonsense'"):
        debian.resolve(["nonsense"])


def test_an_older_version_that_is_served_is_taken(tmp_path: Path, archive: Archive) -> None:
    data = b"zlib1g 1:1.3-1"
    pin = (
        apt(tmp_path)
        .resolve(["zlib1g"])[0]
        .model_copy(
            update={
                "version": "1:1.3-1",
                "file": "zlib1g_1.3-1_amd64.deb",
                "sha256": hashlib.sha256(data).hexdigest(),
            }
        )
    )
    store = Store(tmp_path / "store")
    debian = apt(tmp_path)
    assert debian.served([pin]) == {pin: True}
    debian.download([pin], store)
    assert store.path(pin.sha256).read_bytes() == data


def pin_text(*pins: Pin) -> str:
    return "# ours\n" + "".join(
        entry(**pin.model_dump(mode="json", exclude_defaults=True)) for pin in pins
    )


def run(workspace: Workspace, **options: object) -> FetchResult:
    profile = workspace.stack().select(None)
    return fetch(workspace, profile, SilentProgress(), **options)  # type: ignore[arg-type]


def test_what_moved_is_repinned_and_nothing_else(
    tmp_path: Path, archive: Archive, project: Project
) -> None:
    archive.drop("zlib1g", "1:1.3-2")
    workspace = project(one=pin_text(*apt(tmp_path).resolve(["libc6", "zlib1g"])))
    path = workspace.recipes / "one" / "sources.toml"
    before = path.read_text()
    archive.put("zlib1g", "1:1.3-2")
    archive.put("libc6", "2.41-13")
    archive.drop("zlib1g", "1:1.3-1")

    with pytest.raises(SourceUnavailableError, match=r"no longer serves zlib1g 1:1\.3-1"):
        run(workspace, locked=True)
    assert path.read_text() == before

    result = run(workspace)
    assert [(one.name, one.old, one.new) for one in result.moved] == [
        ("zlib1g", "1:1.3-1", "1:1.3-2")
    ]
    text = path.read_text()
    assert text.startswith("# ours\n")
    assert "2.41-12" in text
    assert "1.3-1" not in text
    folder = workspace.build / "sources" / "tiny"
    assert (folder / "one" / "zlib1g_1.3-2_amd64.deb").read_bytes() == b"zlib1g 1:1.3-2"
    assert 'zlib1g_version: ["1.3"]' in (folder / "variants.yaml").read_text()
    assert run(workspace, locked=True).fetched == ()


def test_pin_takes_the_newest(tmp_path: Path, archive: Archive, project: Project) -> None:
    bare = {"kind": "debian", "name": "zlib1g", "suite": "trixie", "architecture": "amd64"}
    workspace = project(one=entry(**bare))
    profile = workspace.stack().select(None)
    (change,) = Pinner(workspace, profile, SilentProgress()).recipes()
    assert (change.old, change.new) == ("", "1:1.3-2")
    assert read_pins(workspace, profile)["one"][0].size == len(b"zlib1g 1:1.3-2")
    assert run(workspace).cached == 1


def test_a_mirror_that_is_gone_is_said(tmp_path: Path, archive: Archive) -> None:
    shutil.rmtree(archive.root)
    with pytest.raises(SourceUnavailableError) as caught:
        apt(tmp_path).update()
    assert "Debian trixie" in str(caught.value)
    assert "file:" not in str(caught.value)
    assert "the mirror" in str(caught.value)


def test_bytes_that_differ_from_the_index_are_refused(tmp_path: Path, archive: Archive) -> None:
    debian = apt(tmp_path)
    pins = debian.resolve(["libc6"])
    path = archive.root / "pool" / "main" / "libc6" / pins[0].file
    path.write_bytes(b"LIBC6 2.41-12")
    store = Store(tmp_path / "store")
    with pytest.raises(SourceUnavailableError, match="libc6"):
        debian.download(pins, store)
    assert not store.has(pins[0].sha256)


def test_a_machine_without_apt_is_told(
    tmp_path: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match="apt-get is not on this machine"):
        apt(tmp_path).update()
