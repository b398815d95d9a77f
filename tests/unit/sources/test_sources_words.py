"""Small pure parts: apt sources, Debian words, given trees, names, versions, markers."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from assembler.errors import ConfigError, MissingToolError
from assembler.sources import pypi, transfer
from assembler.sources.apt_sources import AptSource, for_suite, parse_deb822, parse_one_line
from assembler.sources.bring import Brought
from assembler.sources.conda_names import conda_name
from assembler.sources.debian import relations, upstream_version, version_key
from assembler.sources.fetch import variants
from assembler.sources.git import next_version, public, submodule_url, tag_version
from assembler.sources.given import GitRef, parse, remember, remembered, take
from assembler.sources.pins import Pin
from assembler.sources.pypi import Found, Target
from assembler.sources.repin import replace_pins
from assembler.sources.wheels import marker_environment, reached, read_requirements
from assembler.workspace import Workspace

TARGET = Target("3.11", "x86_64", (2, 36))


def test_one_line_sources_are_read() -> None:
    text = """
# deb http://off.example.org/debian bookworm main
deb-src http://mirror.example.org/debian bookworm main
deb [arch=amd64,arm64 signed-by=/usr/share/keyrings/x.gpg] http://mirror.example.org/debian bookworm main contrib # ours
deb http://mirror.example.org/flat ./
"""  # noqa: E501
    first, flat = parse_one_line(text)
    assert first == AptSource(
        ("http://mirror.example.org/debian",),
        ("bookworm",),
        ("main", "contrib"),
        (("Architectures", "amd64 arm64"), ("Signed-By", "/usr/share/keyrings/x.gpg")),
    )
    assert flat.suites == ("./",)


def test_deb822_sources_are_read() -> None:
    text = """\
Types: deb deb-src
# a comment between fields
URIs: http://mirror.example.org/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
# a comment within a field
 abc
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
Enabled: no
URIs: http://off.example.org/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://src.example.org/debian
Suites: bookworm
Components: main
"""
    (source,) = parse_deb822(text)
    assert source.suites == ("bookworm", "bookworm-updates")
    key = dict(source.options)["Signed-By"]
    assert key.splitlines()[-1] == " -----END PGP PUBLIC KEY BLOCK-----"
    assert "comment" not in key
    assert parse_deb822(source.stanza()) == (source,)


def test_sources_turn_to_another_suite() -> None:
    mirror = AptSource(("http://a/debian",), ("bookworm", "bookworm-updates"), ("main",))
    security = AptSource(("http://a/security",), ("bookworm-security",), ("main", "contrib"))
    foreign = AptSource(("http://b/repo",), ("nodistro",), ("main",))
    extra = AptSource(("http://a/debian",), ("bookworm",), ("contrib",))
    turned = for_suite([mirror, security, foreign, extra], "trixie")
    assert [(one.uris[0], one.suites, one.components) for one in turned] == [
        ("http://a/debian", ("trixie", "trixie-updates"), ("main",)),
        ("http://a/security", ("trixie-security",), ("main",)),
    ]
    assert for_suite([AptSource(("http://a",), ("stable/updates",), ("main",))], "trixie")[
        0
    ].suites == ("trixie-security",)


def test_a_machine_without_debian_is_told() -> None:
    with pytest.raises(MissingToolError, match="ASSEMBLER_APT_SOURCES"):
        for_suite([AptSource(("http://u/ubuntu",), ("noble",), ("main",))], "trixie")


@pytest.mark.parametrize(
    ("debian", "upstream"),
    [
        ("3.11.2-6+deb12u9", "3.11.2"),
        ("1:1.2.13.dfsg-1+deb12u1", "1.2.13.dfsg"),
        ("2026f-0+deb13u1", "2026f"),
        ("1:1.3.dfsg+really1.3.1-1+b1", "1.3.dfsg+really1.3.1"),
        ("20250419+deb13u1", "20250419+deb13u1"),
        ("1:6.5", "6.5"),
        ("6.5", "6.5"),
    ],
)
def test_upstream_versions(debian: str, upstream: str) -> None:
    assert upstream_version(debian) == upstream


def test_debian_versions_sort_as_dpkg_does() -> None:
    ordered = ["1.0~rc1-1", "1.0-1", "1.0-1+deb12u1", "1.0-1+deb12u10", "1.1-1", "1:0.5-1"]
    shuffled = sorted(ordered, reverse=True)
    assert sorted(shuffled, key=version_key) == ordered  # type: ignore[arg-type]


def test_relations_are_read() -> None:
    text = "libc6 (>= 2.35), media-types | mime-support, python3:any, libssl3t64 (>= 3.0.0) [amd64]"
    assert relations(text) == (
        ("libc6",),
        ("media-types", "mime-support"),
        ("python3",),
        ("libssl3t64",),
    )
    assert relations("") == ()


COMMIT = "0123456789" * 4


def test_given_paths_and_commits_are_read(tmp_path: Path) -> None:
    (tmp_path / "ATOM").mkdir()
    url = "https://github.com/ROCm/ATOM"
    assert parse("atom=ATOM", base=tmp_path) == ("atom", tmp_path / "ATOM")
    assert parse(f"atom={url}@{COMMIT}", base=tmp_path) == ("atom", GitRef(url, COMMIT))
    scp = "git@github.com:ROCm/ATOM.git"
    assert parse(f"atom={scp}@{COMMIT}", base=tmp_path) == ("atom", GitRef(scp, COMMIT))
    assert parse("atom=", base=tmp_path) == ("atom", None)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("ATOM", "names no source"),
        ("=x", "names no source"),
        ("atom=nowhere", "there is no folder"),
        ("atom=https://github.com/ROCm/ATOM", "there is no folder"),
        ("atom=https://github.com/ROCm/ATOM@main", "full commit hash"),
        ("atom=https://github.com/ROCm/ATOM@0123456", "full commit hash"),
        (f"atom=--upload-pack=touch:x@{COMMIT}", "no repository's address"),
        (f"atom=ext::sh -c x@{COMMIT}", "no repository's address"),
    ],
)
def test_given_nonsense_is_refused(tmp_path: Path, option: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(option, base=tmp_path)


def test_what_was_given_is_remembered_and_forgotten(tmp_path: Path) -> None:
    workspace = Workspace.at(tmp_path / "project")
    tree = tmp_path / "ATOM"
    tree.mkdir()
    assert take(workspace, []) == {}
    assert not workspace.build.exists()
    assert take(workspace, [f"atom={tree}"]) == {"atom": tree}
    assert take(workspace, [f"mori=https://x.org/mori@{COMMIT}"]) == {
        "atom": tree,
        "mori": GitRef("https://x.org/mori", COMMIT),
    }
    assert take(workspace, ["atom="]) == {"mori": GitRef("https://x.org/mori", COMMIT)}
    assert remembered(workspace) == take(workspace, [])
    (workspace.build / "given.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"given\.json"):
        remembered(workspace)
    remember(workspace, {})
    assert remembered(workspace) == {}


def test_distributions_have_conda_names() -> None:
    assert conda_name("Typing.Extensions") == "typing_extensions"
    assert conda_name("msgpack") == "msgpack-python"
    assert conda_name("torch") == "pytorch"
    assert conda_name("Charset_Normalizer") == "charset-normalizer"


@pytest.mark.parametrize(
    ("tag", "following"),
    [("v0.1.6", "0.1.7"), ("0.1.6rc1", "0.1.6rc2"), ("v1.2.post1", "1.2.post2"), ("v3", "4")],
)
def test_versions_after_a_tag(tag: str, following: str) -> None:
    version = tag_version(tag)
    assert version is not None
    assert next_version(version) == following
    assert Version(following) > version


def test_tags_without_a_version_are_none() -> None:
    assert tag_version("nightly") is None
    assert tag_version("gfx942-2026w4") is None
    assert next_version(Version("1.0.dev3")) == "1.0"


@pytest.mark.parametrize(
    ("parent", "url", "full"),
    [
        ("https://github.com/ROCm/aiter", "../ck.git", "https://github.com/ROCm/ck.git"),
        ("https://github.com/ROCm/aiter.git/", "../../x/y", "https://github.com/x/y"),
        ("/srv/git/aiter", "../ck", "/srv/git/ck"),
        ("https://a/b", "https://c/d", "https://c/d"),
    ],
)
def test_submodule_addresses(parent: str, url: str, full: str) -> None:
    assert submodule_url(parent, url) == full


def test_credentials_never_show() -> None:
    secret = "https://user:hunter2@index.example.org:8443/simple/x.whl?token=hunter2#frag"
    assert transfer.public(secret) == "https://index.example.org:8443/simple/x.whl"
    assert "hunter2" not in public("fatal: could not read from https://user:hunter2@h/x")
    assert "hunter2" not in pypi.last_words("ERROR: 404 for https://user:hunter2@h/x")


def test_wheel_tags_reach_down_to_the_old_names() -> None:
    assert TARGET.platforms[0] == "manylinux_2_36_x86_64"
    assert "manylinux_2_28_x86_64" in TARGET.platforms
    assert "manylinux_2_37_x86_64" not in TARGET.platforms
    assert TARGET.platforms[-4:] == (
        "manylinux2014_x86_64",
        "manylinux2010_x86_64",
        "manylinux1_x86_64",
        "linux_x86_64",
    )
    with pytest.raises(ConfigError, match="osx-64"):
        Target.of(python="3.11", platform="osx-64", glibc="2.36")


def test_pips_settings_make_the_network() -> None:
    network = transfer.settings(
        {"proxy": "http://p:3128", "cert": "/c.pem", "trusted-host": "a.org b.org:8080"}
    )
    assert network.proxies == {"http": "http://p:3128", "https": "http://p:3128"}
    assert network.trust("https://x.org/f") == "/c.pem"
    assert network.trust("https://a.org/f") is False
    assert network.trust("https://b.org:8080/f") is False
    assert network.trust("https://b.org/f") == "/c.pem"


def found(name: str, *requires: str) -> Found:
    return Found(name, "1", f"https://x/{name}.whl", None, requires)


def test_dependencies_are_followed_as_the_target_sees_them() -> None:
    everything = {
        "app": found("app", "lib[fast]", 'old; python_version < "3.11"', 'win; os_name == "nt"'),
        "lib": found("lib", "base", 'quick; extra == "fast"', 'slow; extra == "slow"'),
        "base": found("base"),
        "quick": found("quick", 'new>=2; python_version >= "3.11"'),
        "old": found("old"),
    }
    taken, unmet = reached(["app"], everything, marker_environment(TARGET))
    assert sorted(taken) == ["app", "base", "lib", "quick"]
    assert unmet == {"new": "new>=2"}


def test_requirement_lists_are_read(tmp_path: Path) -> None:
    path = tmp_path / "cpu.in"
    path.write_text("# why\nnumpy>=2  # used\n\nsetuptools-scm[toml]>=6.2\n")
    assert read_requirements(path) == ("numpy>=2", "setuptools-scm[toml]>=6.2")
    path.write_text("numpy\n-r other.txt\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_requirements(path)


def pin(name: str, version: str, kind: str = "pypi") -> Pin:
    more = {"suite": "bookworm", "architecture": "amd64"} if kind == "debian" else {}
    return Pin.model_validate(
        {"kind": kind, "name": name, "version": version, "file": "f", "sha256": "0" * 64} | more
    )


def test_variants_hold_versions() -> None:
    text = variants([pin("amd-aiter", "0.1"), pin("zlib1g", "1:1.2-3", "debian")])
    assert text == 'amd_aiter_version: ["0.1"]\nzlib1g_version: ["1.2"]\n'


def test_repinning_keeps_comments_and_order(tmp_path: Path) -> None:
    path = tmp_path / "sources.toml"
    old, new = pin("zlib1g", "1.2-3", "debian"), pin("zlib1g", "1.2-4", "debian")
    text = "# top\n\n" + "".join(
        f'[[cpu]]\nkind = "debian"\nname = "{name}"\nversion = "1.2-3" # kept\nfile = "f"\n'
        f'sha256 = "{"0" * 64}"\nsuite = "bookworm"\narchitecture = "amd64"\n\n'
        for name in ("other", "zlib1g")
    )
    path.write_text(text)
    replace_pins(path, "cpu", {"zlib1g": new})
    head, _, tail = text.partition('name = "zlib1g"')
    assert path.read_text() == head + 'name = "zlib1g"' + tail.replace("1.2-3", "1.2-4")
    assert [one.name for one in tmp_path.iterdir()] == ["sources.toml"]
    assert Brought({old: new}).moved[0].new == "1.2-4"
