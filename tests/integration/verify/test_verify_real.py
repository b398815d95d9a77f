"""Every gate on the real image of the cpu profile, where `assembler clean-image` has made it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assembler.workspace import Workspace

PROJECT = Path(__file__).parents[3]
WORKSPACE = Workspace.at(PROJECT)
PROFILE = WORKSPACE.stack().select("cpu")
IMAGE = WORKSPACE.image_layout(PROFILE)
pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(not IMAGE.is_dir(), reason="no image: run assembler clean-image first"),
]


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The report of one run of every gate, by gate."""
    from tests.conftest import run_assembler

    scratch = tmp_path_factory.mktemp("scratch")
    run: Callable[..., subprocess.CompletedProcess[str]] = run_assembler
    done = run(
        "verify", "-q", "--json", "--profile", "cpu", "--scratch", scratch, cwd=PROJECT, timeout=600
    )
    assert done.stdout, done.stderr
    (subject,) = json.loads(done.stdout)["subjects"]
    return {gate["gate"]: gate for gate in subject["gates"]}


def test_every_gate_ran_and_passed(gates: dict[str, dict[str, Any]]) -> None:
    assert {name: gate["verdict"] for name, gate in gates.items()} == dict.fromkeys(gates, "pass")
    assert all(gate["examined"] > 0 for gate in gates.values())


def test_what_is_allowed_has_its_reason_and_nothing_else_is_an_error(
    gates: dict[str, dict[str, Any]],
) -> None:
    for gate in gates.values():
        for finding in gate["findings"]:
            assert finding["severity"] != "error" or finding["allowed"], finding


def test_the_smokes_ran_watched_and_started_no_compiler(gates: dict[str, dict[str, Any]]) -> None:
    facts = gates["smoke"]["facts"]
    outcomes = {run["id"]: run["outcome"] for run in facts["runs"]}
    assert outcomes["imports"] == outcomes["matmul"] == "pass"
    assert outcomes["aiter"] == "does-instead"
    assert facts["user"] == "65532:65532"
    if facts["untraced"] is None:
        started = {item["path"] for run in facts["runs"] for item in run["execs"]}
        assert "/opt/atom/bin/python" in started


def test_code_objects_and_modules_are_those_of_the_wheel(gates: dict[str, dict[str, Any]]) -> None:
    assert gates["gfx"]["examined"] == 2613
    counts = gates["jit"]["facts"]["counts"]
    assert sum(counts["aiter"].values()) == 65
    assert counts["aiter"] == {"not-asked": 12, "cannot": 53}
