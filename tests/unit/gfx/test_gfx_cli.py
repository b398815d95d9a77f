import errno
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gfxmake as make
import jsonschema
import pytest

from assembler.cli.main import run
from assembler.errors import ConfigError, NoSpaceError, VerifyError
from assembler.verify import gfx
from assembler.verify.gfx import CodeObject

SCHEMA = Path(gfx.__file__).with_name("inventory.schema.json")
KERNELS = [{".name": "gemm", ".vgpr_count": 128, ".group_segment_fixed_size": 4096}]


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.co").write_bytes(make.elf(kernels=KERNELS))
    (tmp_path / "b.co").write_bytes(make.elf(0x73F))
    assert run(["gfx", "-q", str(tmp_path)]) == 0
    rows = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert ["gfx942", "1", "1"] in rows
    assert ["gfx90a:xnack+", "1", "1"] in rows


def test_the_list_with_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "a.co"
    place.write_bytes(make.elf(kernels=KERNELS))
    assert run(["gfx", "-q", "--kernels", str(place)]) == 0
    out = capsys.readouterr().out
    assert "a.co at 0: gfx942" in out
    assert "gemm: VGPRs 128, LDS 4096" in out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "lib.so"
    place.write_bytes(make.host_elf((".hip_fatbin", make.bundle(
        [("hipv4-amdgcn-amd-amdhsa--gfx942", make.elf(kernels=KERNELS))]))))  # fmt: skip
    assert run(["gfx", "-q", "--json", "--kernels", str(place)]) == 0
    (subject,) = json.loads(capsys.readouterr().out)["subjects"]
    (found,) = subject["code_objects"]
    assert found["section"] == ".hip_fatbin"
    assert found["kernels"] == [{"name": "gemm", "vgprs": 128, "lds": 4096}]
    assert subject["targets"] == [
        {"target": "gfx942", "objects": 1, "files": 1, "size": found["size"], "kernels": 1}
    ]


def test_damage_is_one_json_object_and_exit_code_11(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.co").write_bytes(make.elf()[:99])
    assert run(["gfx", "-q", "--json", str(tmp_path)]) == VerifyError.exit_code
    said = capsys.readouterr()
    (subject,) = json.loads(said.out)["subjects"]
    assert subject["troubles"][0]["path"] == "a.co"
    assert said.err.startswith("assembler: ")
    assert "a.co, offset" in said.err


def test_no_gpu_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert run(["gfx", "-q", str(tmp_path)]) == 0
    assert "no GPU code" in capsys.readouterr().out


def test_a_missing_path_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gfx", "-q", str(tmp_path / "nothing")]) == ConfigError.exit_code
    assert "there is no file or folder" in capsys.readouterr().err


def test_names_cannot_write_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (b"\x1b[31m.co", b"new\nline.co", b"latin\xe9.co"):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as out:  # noqa: PTH118, PTH123
            out.write(make.elf()[:150])
    assert run(["gfx", "-q", "--list", str(tmp_path)]) == VerifyError.exit_code
    assert run(["gfx", "-q", "--json", str(tmp_path)]) == VerifyError.exit_code
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "\\x1b[31m.co" in said.err


def test_output_fits_its_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.co").write_bytes(make.elf(kernels=KERNELS))
    (tmp_path / "b.co").write_bytes(make.elf()[:150])
    (tmp_path / "c.kpack").write_bytes(make.kpack([("lib.so", "gfx942", make.elf())]))
    run(["gfx", "-q", "--json", "--kernels", str(tmp_path)])
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, schema, jsonschema.Draft202012Validator)
    assert set(CodeObject.__slots__) | {"target"} == set(
        schema["$defs"]["codeObject"]["properties"]
    )


def test_a_full_disk_is_no_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    (tmp_path / "big.bin.gz").write_bytes(gzip.compress(bytes(20 << 20)))
    assert run(["gfx", "-q", str(tmp_path)]) == NoSpaceError.exit_code
    assert "TMPDIR" in capsys.readouterr().err


@pytest.mark.parametrize("index", ["[]", '{"manifests": [1]}', '{"manifests": 1}'])
def test_a_malformed_layout_is_one_sentence(
    index: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (tmp_path / "index.json").write_text(index)
    assert run(["gfx", "-q", str(tmp_path)]) == VerifyError.exit_code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("assembler: ")


@pytest.mark.parametrize(("damaged", "code"), [(False, 0), (True, VerifyError.exit_code)])
@pytest.mark.parametrize("form", ["--list", "--json"])
def test_a_reader_who_goes_away_changes_no_exit_code(
    tmp_path: Path, form: str, damaged: bool, code: int
) -> None:
    """More than a pipe holds, and nobody reads it."""
    for number in range(800):
        (tmp_path / f"{number}{'x' * 100}.co").write_bytes(make.elf())
    if damaged:
        (tmp_path / "damaged.co").write_bytes(make.elf()[:99])
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "assembler", "gfx", "-q", form, str(tmp_path)],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_a_narrow_terminal_cuts_no_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    (tmp_path / "b.co").write_bytes(make.elf(0x73F))
    assert run(["gfx", "-q", str(tmp_path)]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "gfx90a:xnack+" in line]
    assert row.split()[:3] == ["gfx90a:xnack+", "1", "1"]
