"""What changed between two locks, and base pins that stay or move."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from assembler.lock.base import base_moves, pin_base
from assembler.lock.diff import compare, markdown, table
from assembler.lock.model import Lock, LockedPackage
from assembler.sources.store import Store
from assembler.stack import Profile
from tests.data_stack import FakeArchive


def changed(lock: Lock, name: str, **values: object) -> Lock:
    packages = tuple(
        replace(package, **values) if package.name == name else package  # type: ignore[arg-type]
        for package in lock.packages
    )
    return replace(lock, packages=packages)


def without(lock: Lock, name: str) -> Lock:
    return replace(lock, packages=tuple(p for p in lock.packages if p.name != name))


def kinds(old: Lock | None, new: Lock) -> dict[str, str]:
    return {change.name: change.kind for change in compare(old, new).changes}


def test_the_same_lock_has_no_differences(lock: Lock) -> None:
    difference = compare(lock, lock)
    assert difference.is_empty
    assert table(difference) == "no differences"
    assert markdown(difference) == "No differences."


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"version": "2.10"}, "upgraded"),
        ({"version": "1.9"}, "downgraded"),
        ({"version": "2.0.0"}, "rebuilt"),
        ({"build": "h9_0"}, "rebuilt"),
        ({"sha256": "0" * 64}, "rebuilt"),
    ],
)
def test_versions_are_compared_as_conda_does(
    lock: Lock, values: dict[str, object], kind: str
) -> None:
    assert kinds(lock, changed(lock, "zlib", **values)) == {"zlib": kind}


def test_added_and_removed(lock: Lock) -> None:
    assert kinds(without(lock, "zlib"), lock) == {"zlib": "added"}
    assert kinds(lock, without(lock, "zlib")) == {"zlib": "removed"}
    assert set(kinds(None, lock).values()) == {"added"}


def test_sizes_licences_targets_and_settings_are_told(lock: Lock) -> None:
    new = replace(
        changed(lock, "zlib", version="3.0", size=10**9, license="A|B"),
        gfx_targets=("gfx950", "gfx1100"),
        virtual_packages={**lock.virtual_packages, "__glibc": "2.41"},
    )
    difference = compare(lock, new)
    assert difference.gfx_added == ("gfx1100",)
    assert difference.gfx_removed == ("gfx942",)
    assert difference.settings == {"virtual package __glibc": ("2.36", "2.41")}
    assert difference.new_size - difference.old_size == 10**9 - lock.by_name["zlib"].size
    text = table(difference)
    for words in ("licence Zlib → A|B", "GPU target gfx942 removed", "2.36 → 2.41", "upgraded"):
        assert words in text
    lines = markdown(difference).splitlines()
    assert lines[0] == "| package | old | new | size | change |"
    assert "A\\|B" in lines[2]
    assert lines[2].replace("\\|", "").count("|") == 6


def test_the_difference_is_plain_data(lock: Lock) -> None:
    data = compare(without(lock, "zlib"), lock).as_dict()
    assert isinstance(data["changes"], list)
    assert data["changes"][0]["new_sha256"] == lock.by_name["zlib"].sha256


# -- base ------------------------------------------------------------------------------------------


@pytest.fixture
def imaged(profile: Profile) -> Profile:
    base = profile.image.base.model_copy(update={"packages": ("zlib1g", "libc6")})
    return profile.model_copy(update={"image": profile.image.model_copy(update={"base": base})})


def test_pins_that_are_served_stay_and_are_asked_about_once(
    imaged: Profile, tmp_path: Path
) -> None:
    archive, store = FakeArchive("1"), Store(tmp_path)
    first = pin_base(imaged, (), store, lambda: archive)
    assert [pin.name for pin in first] == ["libc6", "zlib1g"]
    assert pin_base(imaged, first, store, lambda: archive) == first
    assert archive.asked == [("resolve", ("zlib1g", "libc6")), ("served", ("libc6", "zlib1g"))]


def test_pins_in_the_store_need_no_archive(imaged: Profile, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    pins = []
    for pin in FakeArchive("1").resolve(["libc6", "zlib1g"]):
        data = pin.name.encode()
        sha256 = hashlib.sha256(data).hexdigest()
        file = tmp_path / pin.file
        file.write_bytes(data)
        store.add(file, sha256, move=True)
        pins.append(pin.model_copy(update={"sha256": sha256}))

    def never() -> FakeArchive:
        raise AssertionError("the archive was opened")

    assert pin_base(imaged, pins, store, never) == tuple(pins)


def test_only_what_vanished_or_is_named_moves(imaged: Profile, tmp_path: Path) -> None:
    store = Store(tmp_path)
    old = FakeArchive("1").resolve(["libc6", "zlib1g"])
    new = FakeArchive("2")
    moved = pin_base(imaged, old, store, lambda: new)
    assert [pin.version for pin in moved] == ["2", "2"]
    assert [(m.name, m.old, m.new) for m in base_moves(old, moved)] == [
        ("libc6", "1", "2"), ("zlib1g", "1", "2"),
    ]  # fmt: skip
    named = pin_base(imaged, old, store, lambda: FakeArchive("1"), update=["libc6"])
    assert named == old
    every = FakeArchive("1")
    pin_base(imaged, old, store, lambda: every, update=None)
    assert every.asked == [("resolve", ("zlib1g", "libc6"))]


def test_another_suite_moves_everything(imaged: Profile, tmp_path: Path) -> None:
    old = FakeArchive("1", suite="bookworm").resolve(["libc6", "zlib1g"])
    archive = FakeArchive("2")
    pin_base(imaged, old, Store(tmp_path), lambda: archive)
    assert archive.asked == [("resolve", ("zlib1g", "libc6"))]


def test_two_packages_of_one_name_are_refused(lock: Lock) -> None:
    package: LockedPackage = lock.packages[0]
    with pytest.raises(Exception, match="twice"):
        replace(lock, packages=(*lock.packages, package))
