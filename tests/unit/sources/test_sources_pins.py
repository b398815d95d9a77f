"""Pin files: what is read, and what a faulty one is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assembler.errors import ConfigError
from assembler.sources.pins import Pin, read_pin_file, read_wheels

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,20}", fullmatch=True)
HASHES = st.text("0123456789abcdef", min_size=64, max_size=64)
SHA = "ab" * 32


@st.composite
def pins(draw: st.DrawFn) -> Pin:
    kind = draw(st.sampled_from(["pypi", "url", "debian", "git"]))
    data: dict[str, object] = {
        "kind": kind,
        "name": draw(NAMES),
        "version": draw(st.from_regex(r"[0-9][0-9a-z.+~:-]{0,12}", fullmatch=True)),
        "file": draw(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._+~-]{0,30}", fullmatch=True)),
        "sha256": draw(HASHES),
        "size": draw(st.none() | st.integers(0, 2**40)),
        "why": draw(st.text("aé→ \"\\#'\t", max_size=12)),
    }
    if kind in ("url", "git"):
        data["url"] = "https://example.org/" + draw(NAMES)
    if kind == "debian":
        data |= {"suite": draw(NAMES), "architecture": draw(NAMES)}
    if kind == "git":
        data |= {
            "commit": draw(st.text("0123456789abcdef", min_size=40, max_size=40)),
            "submodules": tuple(draw(st.lists(NAMES, max_size=2))),
        }
    return Pin.model_validate(data)


def toml(pin: Pin) -> str:
    data = pin.model_dump(mode="json", exclude_none=True)
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in data.items()]
    return "[[cpu]]\n" + "\n".join(lines) + "\n"


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(pins(), max_size=4, unique_by=(lambda pin: pin.name, lambda pin: pin.file)))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, some: list[Pin]) -> None:
    path = tmp_path_factory.mktemp("pins") / "sources.toml"
    path.write_text("\n".join(map(toml, some)), encoding="utf-8")
    assert read_pin_file(path, "cpu") == tuple(some)
    assert read_pin_file(path, "rocm") == ()


GOOD = {
    "kind": "pypi",
    "name": "thing",
    "version": "1.0",
    "file": "thing-1.0-py3-none-any.whl",
    "sha256": SHA,
}


def write(path: Path, *entries: dict[str, object], table: str = "cpu") -> Path:
    text = ""
    for entry in entries:
        text += f"[[{table}]]\n"
        text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"sha256": None}, "sha256 is missing: the artefact is unpinned"),
        ({"sha256": ""}, "unpinned"),
        ({"sha256": "AB" * 32}, "sha256"),
        ({"sha256": SHA[:-1]}, "sha256"),
        ({"kind": "npm"}, "kind"),
        ({"kind": "debian"}, "suite is missing"),
        ({"kind": "url"}, "url is missing"),
        ({"kind": "git", "url": "https://example.org/x"}, "commit is missing"),
        ({"kind": "git", "url": "https://example.org/x", "commit": "main"}, "commit"),
        ({"file": "../../etc/passwd"}, "file"),
        ({"file": "-rf"}, "file"),
        ({"name": "--index-url"}, "name"),
        ({"version": "1.0 --pre"}, "version"),
        ({"url": "--upload-pack=x"}, "url"),
        ({"size": -1}, "size"),
        ({"sha265": SHA}, "sha265"),
    ],
)
def test_a_faulty_entry_is_named(tmp_path: Path, change: dict[str, object], key: str) -> None:
    faulty = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    path = write(tmp_path / "sources.toml", {**GOOD, "name": "first", "file": "f"}, faulty)
    with pytest.raises(ConfigError) as caught:
        read_pin_file(path, "cpu")
    message = str(caught.value)
    assert str(path) in message
    assert "entry 2" in message
    assert key in message


def test_an_unpinned_entry_is_told_the_command(tmp_path: Path) -> None:
    faulty = {key: value for key, value in GOOD.items() if key != "sha256"}
    with pytest.raises(ConfigError, match="assembler pin"):
        read_pin_file(write(tmp_path / "sources.toml", faulty), "cpu")


@pytest.mark.parametrize("same", ["name", "file"])
def test_pins_of_a_recipe_are_unique(tmp_path: Path, same: str) -> None:
    other = {"name": "other", "file": "other.whl"} | {same: GOOD[same]}
    path = write(tmp_path / "sources.toml", dict(GOOD), {**GOOD, **other})
    with pytest.raises(ConfigError, match=f"two pins have the {same}"):
        read_pin_file(path, "cpu")


@pytest.mark.parametrize("text", ["[cpu]\nname = 1\n", "cpu = 3\n", "[[cpu]\n", "\udcff"])
def test_what_is_no_pin_file_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sources.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"sources\.toml"):
        read_pin_file(path, "cpu")


def test_a_path_needs_no_hash(tmp_path: Path) -> None:
    path = write(tmp_path / "sources.toml", {"kind": "path", "name": "atom"})
    assert read_pin_file(path, "cpu")[0].kind == "path"


def test_wheels_have_conda_names(tmp_path: Path) -> None:
    data: dict[str, object] = {key: value for key, value in GOOD.items() if key != "kind"}
    path = write(tmp_path / "cpu.toml", {**data, "conda_name": "python-thing"}, table="wheel")
    assert [(one.kind, one.conda_name) for one in read_wheels(path)] == [("pypi", "python-thing")]
    with pytest.raises(ConfigError, match=r"conda_name"):
        read_wheels(write(path, data, table="wheel"))
    with pytest.raises(ConfigError, match="pin --wheels"):
        read_wheels(tmp_path / "none.toml")
