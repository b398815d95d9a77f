"""Solving: roots, GPU targets, virtual packages, updates, and failures in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assembler.channel.index import publish
from assembler.errors import AssemblerError, ConfigError, SolveError
from assembler.lock.files import render
from assembler.lock.make import locked_gfx, make_lock, update_lock
from assembler.lock.model import Lock, topological
from assembler.lock.solve import solve
from assembler.progress import SilentProgress
from assembler.stack import Profile
from assembler.workspace import Workspace
from tests import data_stack
from tests.tiny_packages import make_package

QUIET = SilentProgress()


def names(lock: Lock) -> list[str]:
    return [package.name for package in lock.packages]


def test_the_root_is_the_smaller_one_until_the_source_is_built(
    project: Workspace, profile: Profile, tmp_path: Path
) -> None:
    lock = make_lock(project, profile, QUIET)
    assert lock.specs == ("atom-stack",)
    assert names(lock) == [
        "aiter-device-gfx942", "aiter-device-gfx950", "atom-device", "atom-stack", "torch", "zlib",
    ]  # fmt: skip
    publish(project.channel, [make_package(tmp_path, "atom", depends=["atom-stack"])])
    assert make_lock(project, profile, QUIET).specs == ("atom",)


def test_all_targets_are_the_default_and_one_can_be_chosen(
    project: Workspace, profile: Profile
) -> None:
    every = make_lock(project, profile, QUIET)
    assert every.gfx_targets == ("gfx942", "gfx950")
    assert locked_gfx(every) == ()
    one = make_lock(project, profile, QUIET, gfx=["gfx950"])
    assert one.gfx_targets == ("gfx950",)
    assert one.specs == ("atom-stack", "atom-device * gfx950*")
    assert "aiter-device-gfx942" not in names(one)
    # A relock keeps the choice until another is made.
    assert make_lock(project, profile, QUIET, old=one) == one
    assert make_lock(project, profile, QUIET, old=one, gfx=["all"]) == every
    assert make_lock(project, profile, QUIET, gfx=["gfx950", "gfx942"]) == every


@pytest.mark.parametrize(
    ("gfx", "kind", "words"),
    [
        (["gfx94"], ConfigError, "did you mean gfx942"),
        (["gfx1100"], SolveError, "no device packages for gfx1100; choose among gfx942, gfx950"),
    ],
)
def test_a_wrong_target_is_a_sentence(
    project: Workspace, profile: Profile, gfx: list[str], kind: type[AssemblerError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        make_lock(project, profile, QUIET, gfx=gfx)


def test_two_of_three_targets_cannot_be_selected(tmp_path: Path) -> None:
    project = data_stack.workspace(tmp_path)
    publish(
        project.channel,
        data_stack.packages(tmp_path / "o", targets=["gfx942", "gfx950", "gfx1100"], build="h2_0"),
    )
    with pytest.raises(ConfigError, match="one target or for all"):
        make_lock(project, project.stack().select(None), QUIET, gfx=["gfx942", "gfx950"])


def test_the_same_channel_gives_the_same_bytes(
    project: Workspace, profile: Profile, tmp_path: Path
) -> None:
    before = dict(render(make_lock(project, profile, QUIET)))
    assert dict(render(make_lock(project, profile, QUIET))) == before
    publish(project.channel, [make_package(tmp_path, "unrelated", "7")])
    assert dict(render(make_lock(project, profile, QUIET))) == before
    rebuilt = data_stack.workspace(tmp_path / "again")
    assert dict(render(make_lock(rebuilt, profile, QUIET))) == before


def test_nothing_of_the_machine_is_in_the_files(project: Workspace, lock: Lock) -> None:
    for name, data in render(lock).items():
        assert str(project.channel.parent).encode() not in data, name
        assert b"indexed_timestamp" not in data, name
        assert b"%23" not in data, name


def test_virtual_packages_are_the_profiles_and_not_the_machines(
    project: Workspace, profile: Profile
) -> None:
    old = profile.model_copy(update={"virtual_packages": {"__unix": "0", "__glibc": "2.17"}})
    with pytest.raises(SolveError, match=r"__glibc >=2.28.*profile data assumes __glibc 2.17"):
        make_lock(project, old, QUIET)
    none = profile.model_copy(update={"virtual_packages": {}})
    with pytest.raises(SolveError, match="profile data assumes no __glibc"):
        make_lock(project, none, QUIET)
    new = profile.model_copy(update={"virtual_packages": {"__glibc": "99", "__archspec": "1 zen4"}})
    assert make_lock(project, new, QUIET).virtual_packages["__archspec"] == "1 zen4"


def test_a_malformed_virtual_package_is_a_sentence(project: Workspace, profile: Profile) -> None:
    bad = profile.model_copy(update={"virtual_packages": {"__glibc": "two" * 2 + "!"}})
    with pytest.raises(ConfigError, match="__glibc"):
        make_lock(project, bad, QUIET)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (["atom-stak"], r"build atom-stak \(did you mean atom-stack\?\)"),
        (["zlib >9"], "the channel has zlib 2.0"),
        (["atom-stack", "zlib <1"], "the channel has zlib 2.0"),
        (["torch[["], "is not a request"),
    ],
)
def test_failures_say_what_to_do(
    project: Workspace, profile: Profile, specs: list[str], words: str
) -> None:
    with pytest.raises(AssemblerError, match=words):
        solve(project.channel, profile, specs=specs)


def test_an_empty_channel_is_a_sentence(profile: Profile, tmp_path: Path) -> None:
    with pytest.raises(SolveError, match="is empty; run `assembler build` first"):
        solve(tmp_path / "none", profile)


def test_update_moves_only_what_it_names(
    project: Workspace, profile: Profile, tmp_path: Path
) -> None:
    old = make_lock(project, profile, QUIET)
    publish(
        project.channel,
        [
            make_package(tmp_path, "zlib", "2.5"),
            make_package(tmp_path, "aiter-device-gfx942", "1.1", "gfx942_h2_0"),
        ],
    )
    moved = make_lock(project, profile, QUIET, old=old, update=["zlib"])
    assert moved.by_name["zlib"].version == "2.5"
    assert moved.by_name["aiter-device-gfx942"].version == "1.0"
    assert make_lock(project, profile, QUIET, old=old, update=()).packages == old.packages
    both = make_lock(project, profile, QUIET, old=old)
    assert both.by_name["aiter-device-gfx942"].version == "1.1"


def test_update_of_an_unknown_name_is_a_sentence(project: Workspace, profile: Profile) -> None:
    with pytest.raises(ConfigError, match="--update names 'zlibb'"):
        update_lock(project, profile, QUIET, update=["zlibb"])
    assert not project.lock_file(profile).exists()


def test_a_package_in_both_subdirs_is_one_candidate_set(
    project: Workspace, profile: Profile, tmp_path: Path
) -> None:
    publish(project.channel, [make_package(tmp_path, "zlib", "2.2", subdir="linux-64")])
    assert make_lock(project, profile, QUIET).by_name["zlib"].path.startswith("linux-64/zlib-2.2")
    (older,) = solve(project.channel, profile, specs=["zlib <2.1"])
    assert older.path.startswith("noarch/zlib-2.0")


def test_input_keys_are_those_stored_in_the_packages(lock: Lock) -> None:
    assert lock.input_keys == {"torch": "a" * 64}


def test_topological_order_puts_dependencies_first_and_stands_cycles(lock: Lock) -> None:
    order = [package.name for package in topological(lock.packages)]
    assert sorted(order) == names(lock)
    assert order.index("zlib") < order.index("torch") < order.index("atom-stack")
    cycle = [replace(package, depends=("torch", "zlib", "self")) for package in lock.packages]
    assert len(topological(cycle)) == len(cycle)
