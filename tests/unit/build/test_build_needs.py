from __future__ import annotations

from pathlib import Path

import pytest

from assembler.build.needs import GB, LITTLE, Machine, Needs, read_needs
from assembler.errors import ConfigError

RECIPE = {
    "extra": {
        "needs": [
            {"programs": ["make"]},
            {"when": {"kind": "ck"}, "programs": ["hipcc"], "rocm": True, "cpus": 8, "memory": 16},
        ]
    }
}


def machine(path: str, *, cpus: int = 4, memory: int = 8 * GB, root: Path | None = None) -> Machine:
    return Machine(cpus, memory, path, root)


def test_needs_hold_for_their_choice_alone() -> None:
    assert read_needs(RECIPE, {"kind": ("free",)}, "x") == Needs(("make",))
    assert read_needs(RECIPE, {"kind": ("ck",)}, "x") == Needs(
        ("make", "hipcc"), rocm=True, cpus=8, memory=16 * GB
    )
    assert read_needs({}, {}, "x") == LITTLE


@pytest.mark.parametrize("table", [{"program": ["x"]}, {"cpus": 0}, {"memory": "much"}])
def test_faulty_needs_are_a_sentence(table: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"recipe 'x': extra\.needs"):
        read_needs({"extra": {"needs": [table]}}, {}, "recipe 'x'")


def test_what_the_machine_lacks_is_said_in_one_go(tmp_path: Path) -> None:
    program = tmp_path / "hipcc"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    here = machine(str(tmp_path))
    needs = Needs(("hipcc", "rocminfo"), rocm=True)
    words = here.lacks(needs)
    assert "rocminfo on PATH" in words
    assert "hipcc" not in words
    assert "no ROCm root" in words
    assert machine(str(tmp_path), root=tmp_path).lacks(Needs(("hipcc",), rocm=True)) == ""


def test_a_rocm_root_is_found_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCM_HOME", str(tmp_path))
    monkeypatch.delenv("ROCM_PATH", raising=False)
    assert Machine.here().rocm_root != tmp_path  # nothing there that says it is one
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info" / "version").write_text("7.2.0\n")
    here = Machine.here(cpus=3, memory=5 * GB)
    assert (here.rocm_root, here.cpus, here.memory) == (tmp_path, 3, 5 * GB)
    assert here.path.startswith(f"{tmp_path}/bin:")


def test_builds_start_beside_others_only_within_the_budget() -> None:
    here = machine("", cpus=4, memory=8 * GB)
    large = Needs(cpus=16, memory=64 * GB)
    assert here.fits(large, [])  # alone it must start, or never
    assert not here.fits(large, [LITTLE])
    assert not here.fits(LITTLE, [large])
    assert here.fits(LITTLE, [LITTLE] * 3)
    assert not here.fits(LITTLE, [LITTLE] * 4)
    assert not here.fits(Needs(memory=6 * GB), [Needs(memory=3 * GB)])
