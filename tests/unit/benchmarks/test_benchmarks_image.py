"""The image engine's table and plot are what their result says, also when sides are missing."""

from __future__ import annotations

import copy
import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from benchmarks import image, image_plot, image_table, process
from tests.conftest import ROOT

RESULT = {
    "format": 1, "measured": "2026-01-02", "profile": "cpu", "rounds": 3, "seconds": 600.0,
    "machine": {
        "processor": "a processor", "cores": 2, "memory_bytes": 24e9, "kernel": "Linux 6",
        "system": "Debian", "python": "3.11.7",
    },
    "load": {"before": [0.1, 0.2, 0.3], "after": [2.0, 1.0, 0.5]},
    "versions": {"zstd": "1.5.4", "zstandard": "0.25.0"},
    "figures": {
        "missing": {}, "first_seconds": 20.0, "image_bytes": 500_000_000,
        "bytecode_bytes": 60_000_000,
        "assembly": {
            "seconds": [15.0, 14.0, 16.0], "tar_seconds": [10.0, 10.0, 8.0],
            "peak_bytes": 250_000_000, "tar_bytes": 490_000_000,
        },
        "repeated": {
            "changed_seconds": [0.5, 0.7, 0.6], "changed_package": "idna-3.15-h1_0.conda",
            "changed_bytes": 2_000, "nothing_seconds": [0.4, 0.3, 0.5], "rewritten_files": 0,
        },
        "repull": {
            "bytes": 2_010_000, "image_bytes": 502_000_000, "layers": ["app"],
            "packages": ["atom-device=1.0", "atom=0.1.6"], "layer_bytes": 2_000_000,
            "first_seconds": 9.0, "assembly_seconds": 3.0,
            "package_seconds": 1.5,
        },
        "BuildKit": {
            "uv": {"seconds": 60.0, "bytes": 580_000_000, "ours": 15.0},
            "pip": {"seconds": 100.0, "bytes": 650_000_000, "ours": 16.0},
        },
        "buildah": {
            "uv": {"seconds": 90.0, "bytes": 570_000_000, "ours": 15.0},
            "pip": {"seconds": 120.0, "bytes": 660_000_000, "ours": 15.0},
        },
    },
}  # fmt: skip


def verdicts(result: dict) -> dict[str, tuple[str, str]]:
    return {row.figure: (row.cells[3], row.cells[4]) for row in image_table.rows(result)}


def without(*names: str, **missing: str) -> dict:
    result = copy.deepcopy(RESULT)
    for name in names:
        del result["figures"][name]
    result["figures"]["missing"] = missing
    return result


def test_ratios_and_verdicts():
    assert list(verdicts(RESULT).values()) == [
        ("1.50", "yes"),  # median of the pairs, not the ratio of the medians
        ("6.25", "yes"), ("4.00", "yes"), ("8.00", "yes"), ("6.00", "yes"),
        ("0.77", "yes"), ("0.88", "**no**"), ("0.77", "yes"),
        ("0.60", "yes"), ("1.20", "**no**"), ("0.40", "yes"),
        ("0.83", "yes"), ("0.00", "yes"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("part", "values", "met"),
    [
        ("assembly", {"seconds": [17.0] * 3, "tar_seconds": [10.0] * 3}, "**no**"),
        ("assembly", {"peak_bytes": 300_000_001}, "**no**"),
        ("repeated", {"rewritten_files": 1}, "**no**"),
        ("repull", {"layers": ["app", "host"]}, "**no**"),
        ("repull", {"packages": ["atom-device=1.0"]}, "**no**"),
    ],
)
def test_targets_can_be_missed(part, values, met):
    result = copy.deepcopy(RESULT)
    result["figures"][part] |= values
    before, after = verdicts(RESULT), verdicts(result)
    changed = [name for name in before if before[name][1] != after[name][1]]
    assert len(changed) == 1
    assert after[changed[0]][1] == met


def test_sides_that_are_missing_say_why():
    result = without(
        "BuildKit", "repull", BuildKit="docker is not installed", repull="no checkout was given"
    )
    table = image_table.markdown(result)
    assert table.count("| docker is not installed |  | not measured |") == 2
    assert table.count("| no checkout was given |  | not measured |") == 2
    # Sizes come from the builder that is there.
    assert "500 MB, 660 MB | 0.76" in table
    result = without(
        "BuildKit", "buildah", "repeated", "assembly",
        BuildKit="no b", buildah="no b", repeated="no r", assembly="no a",
    )  # fmt: skip
    reached = [row.reached for row in image_table.rows(result) if row.met is None]
    assert reached == ["no a", *["no b"] * 7, "no r", "no r", "no a"]


def test_one_way_may_be_missing():
    result = without(uv="uv is not installed (--uv)")
    for kind in ("BuildKit", "buildah"):
        del result["figures"][kind]["uv"]
    assert image_table.text(result).count("uv is not installed (--uv)") == 4


def test_the_page_keeps_what_stands_around_the_table():
    page = f"before\n{image_table.BEGIN}\nOUTDATED\n{image_table.END}\nafter\n"
    once = image_table.page(page, RESULT)
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "OUTDATED" not in once
    assert image_table.page(once, RESULT) == once
    with pytest.raises(SystemExit, match="has lost its marks"):
        image_table.page("nothing", RESULT)


def need_matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (the extra bench)")


def test_the_plot_is_a_function_of_the_result(tmp_path):
    need_matplotlib()
    for name in ("one", "two"):
        image_plot.draw(RESULT, tmp_path / f"{name}.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    drawn = (tmp_path / "one.svg").read_text()
    assert drawn.count("Dockerfile, uv, BuildKit") == 2 * drawn.count("assembler, nothing cached")
    image_plot.draw(without("BuildKit"), tmp_path / "less.svg")
    assert "BuildKit" not in (tmp_path / "less.svg").read_text()


@pytest.mark.parametrize("name", [image_table.PAGE, image_table.PLOT])
def test_the_docs_show_the_committed_result(name, tmp_path):
    folder = ROOT / image_table.FOLDER
    if not (folder / image_table.DATA).is_file():
        pytest.skip("nothing was measured yet")
    result = json.loads((folder / image_table.DATA).read_text())
    there = (folder / name).read_text()
    if name == image_table.PAGE:
        assert image_table.page(there, result) == there
        return
    need_matplotlib()
    wanted = (ROOT / "constraints.txt").read_text()
    if f"matplotlib=={metadata.version('matplotlib')}\n" not in wanted:
        pytest.skip("another matplotlib than the pinned one draws otherwise")
    image_plot.draw(result, tmp_path / name)
    assert (tmp_path / name).read_text() == there


def test_programs_are_measured_and_ended():
    clock = process.Clock.of(1)
    ran = process.run([sys.executable, "-c", "b = bytes(90_000_000)"], clock)
    assert ran.peak > 90_000_000
    with pytest.raises(process.BenchmarkError, match="the reason"):
        process.run([sys.executable, "-c", "raise SystemExit('the reason')"], clock)
    with pytest.raises(process.BenchmarkError, match="used up while"):
        process.run(["sleep", "60"], process.Clock.of(0))


def test_a_result_is_shown_without_measuring(tmp_path: Path, capsys):
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    assert image.main(["--from", str(tmp_path / "result.json")]) == 0
    assert "1.50" in capsys.readouterr().out
