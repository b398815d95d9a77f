"""What the doctor concludes from what it finds."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from assembler.doctor import Check, Examination, containers, gpu, machine, network
from assembler.doctor.model import Status
from assembler.verify.schemas import render
from assembler.workspace import Workspace

PROJECT = Workspace.at(Path(__file__).parents[3])
PROFILE = PROJECT.stack().select("cpu")


def check(status: Status, *, required: bool) -> Check:
    return Check(id="x", status=status, found="y", needed_for="z", required=required)


@pytest.mark.parametrize(
    ("status", "required", "able"),
    [
        ("missing", True, False), ("missing", False, True),
        ("limited", True, True), ("ok", True, True),
    ],
)  # fmt: skip
def test_only_what_is_required_and_missing_stops_clean_image(
    status: Status, required: bool, able: bool
) -> None:
    seen = Examination(
        profile="cpu", checks=(check("ok", required=True), check(status, required=required))
    )
    assert seen.able is able


def test_its_json_keeps_to_the_schema_and_the_schema_to_the_model() -> None:
    text = (resources.files("assembler.doctor") / "doctor.schema.json").read_text(encoding="utf-8")
    assert text == render(Examination, "serialization")
    seen = Examination(profile="cpu", checks=(check("missing", required=True),))
    jsonschema.validate(json.loads(seen.model_dump_json()), json.loads(text))


def test_a_short_disk_is_told_with_what_is_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace.at(tmp_path)

    class Usage:
        free = 3 * machine.GB

    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: Usage)
    disk = [one for one in machine.look(workspace, PROFILE) if one.id == "disk"]
    assert [one.status for one in disk] == ["limited"]
    assert "ASSEMBLER_STORE" in disk[0].remedy
    Usage.free = 500 * machine.GB
    disk = [one for one in machine.look(workspace, PROFILE) if one.id == "disk"]
    assert [(one.status, one.remedy) for one in disk] == [("ok", "")]


def test_without_apt_a_filled_store_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network.shutil, "which", lambda name: None)
    monkeypatch.setattr(network, "_pip", lambda filled: check("ok", required=True))
    workspace = Workspace.at(tmp_path)
    bare = [one for one in network.look(workspace, PROFILE) if one.id == "apt"]
    assert [one.status for one in bare] == ["missing"]
    workspace.sources(PROFILE).mkdir(parents=True)
    workspace.store.mkdir(parents=True, exist_ok=True)
    filled = [one for one in network.look(workspace, PROFILE) if one.id == "apt"]
    assert [one.status for one in filled] == ["limited"]


def test_a_program_that_fails_has_no_version() -> None:
    assert machine.version_of("false") is None
    assert machine.version_of("no-such-program-anywhere") is None
    assert machine.version_of("echo", "1.2") == "1.2"


def test_gpu_names_come_from_the_kernel_s_numbers(tmp_path: Path) -> None:
    for number, version in enumerate((0, 90402, 90500, 90010, 110001, 120001)):
        node = tmp_path / str(number)
        node.mkdir()
        (node / "properties").write_text(f"cpu_cores_count 2\ngfx_target_version {version}\n")
    (tmp_path / "9").mkdir()
    assert gpu.read_targets(tmp_path) == ("gfx942", "gfx950", "gfx90a", "gfx1101", "gfx1201")
    assert gpu.read_targets(tmp_path / "none") == ()


def test_without_a_gpu_nothing_else_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "KFD", tmp_path / "kfd")
    (one,) = gpu.look()
    assert (one.status, one.required) == ("missing", False)


def test_a_gpu_gives_the_flags_for_containers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "kfd").touch()
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri/renderD128").touch()
    for name, place in (
        ("KFD", "kfd"),
        ("RENDER", "dri"),
        ("NODES", "nodes"),
        ("DRIVER", "version"),
    ):
        monkeypatch.setattr(gpu, name, tmp_path / place)
    (one,) = gpu.look()
    assert one.status == "ok"
    group = (tmp_path / "kfd").stat().st_gid
    assert f"--device /dev/kfd --device /dev/dri --group-add {group}" in one.found


def test_every_folder_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one on a disk that another folder was looked at on."""
    store = tmp_path / "store"
    store.mkdir()
    monkeypatch.setenv("ASSEMBLER_STORE", str(store))
    monkeypatch.setattr(machine.os, "access", lambda path, _mode: Path(path) != store)
    found = [
        one for one in machine.look(Workspace.at(tmp_path), PROFILE) if one.id == "disk-writable"
    ]
    assert [one.found for one in found] == [f"{store} cannot be written"]
    assert found[0].fatal


def test_a_temporary_folder_that_is_not_the_users_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    (told,) = [
        one for one in machine.look(Workspace.at(tmp_path), PROFILE) if one.id == "temporary-folder"
    ]
    assert told.status == "limited"
    assert "none) cannot be used" in told.found
    monkeypatch.setattr(machine.tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (told,) = [
        one for one in machine.look(Workspace.at(tmp_path), PROFILE) if one.id == "temporary-folder"
    ]
    assert str(tmp_path) in told.found


def test_no_program_at_all_is_told_and_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = {one.id: one for one in containers.look()}
    assert found["engine"].status == "missing"
    assert "podman is not installed" in found["engine"].found
    assert found["user-namespaces"].status == "limited"
